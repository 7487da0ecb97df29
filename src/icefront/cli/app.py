"""The commands, their options and their help; what they do is in the modules beside this one.

Those modules are imported when their command runs: help and completion answer at once, and `doctor` works where
parts are missing.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated, Literal

import typer

from icefront.cli.errors import Commands
from icefront.log import configure
from icefront.proof import failpoints
from icefront.version import __version__

app = typer.Typer(
    name="icefront",
    cls=Commands,
    help="Exactly-once change data capture into Apache Iceberg, on Spark.",
    epilog="Exit codes: 0 ok, 1 unexpected, 2 configuration, 3 connection, 4 fenced, 5 stopped on data, 6 lagging, 7 differences.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline file.", show_default=False)]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="catalog.namespace.table", show_default=False)]
Files = Annotated[list[Path], typer.Argument(metavar="FILE", help="Pipeline files.", show_default=False)]


def main() -> None:
    """Run the command line; the entry point of the package."""
    # A short command does little but import, and next to nothing of what imports make is garbage: to search it as often as Python does by
    # itself takes a good part of their time.
    gc.set_threshold(50_000, 20, 50)
    app()


def _version(wanted: bool) -> None:  # noqa: FBT001 — typer's callback
    if wanted:
        typer.echo(f"icefront {__version__}")
        raise typer.Exit


def _seconds(text: str) -> float:
    """Read a duration the way the files do: 500ms, 60s, 5m."""
    from icefront.settings import Duration

    try:
        return Duration.parse(text).seconds
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _bytes(text: str) -> int:
    """Read a size the way the files do: 512MiB, 10GiB."""
    from icefront.settings import Size

    try:
        return Size.parse(text).bytes
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@app.callback()
def _options(
    *,
    log: Annotated[Literal["plain", "json"], typer.Option(help="The form of log lines on stderr.")] = "plain",
    verbose: Annotated[int, typer.Option("-v", "--verbose", count=True, help="Show more of the log: -v, -vv.")] = 0,
    debug: Annotated[bool, typer.Option("--debug", envvar="ICEFRONT_DEBUG", help="Show tracebacks.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Exactly-once change data capture into Apache Iceberg, on Spark."""
    del debug, version  # `Commands` looks at debug; the version was printed by now
    configure(log, verbose)
    failpoints.check()


@app.command(epilog="Example: [bold]icefront init shop && cd shop && icefront run orders.yaml --until caught-up[/]")
def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to make the project.")] = Path()) -> None:
    """Make a project with a runnable sample pipeline and a small generated changefeed. Overwrites nothing."""
    from icefront.cli import starting

    starting.init(folder)


@app.command(epilog="Example: [bold]icefront demo --dir /tmp/shop[/]")
def demo(
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Where to make the lakehouse: a new or empty folder. Default: a temporary one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which made-up shop.")] = 7,
) -> None:
    """Crash, resume, wake a zombie, and prove table == source at every snapshot: a minute or two."""
    from icefront.cli import showing

    showing.demo(folder, seed)


@app.command(epilog="Example: [bold]icefront doctor[/]")
def doctor(*, as_json: Json = False) -> None:
    """Look at Java, Spark, jars, folders and catalogs: what is there, what is missing, the exact fix."""
    from icefront.cli import looking

    looking.doctor(as_json=as_json)


@app.command(epilog="Example: [bold]icefront check orders.yaml[/]")
def check(files: Files, *, as_json: Json = False) -> None:
    """Check configuration, connections and schemas. Starts no JVM and changes nothing."""
    from icefront.cli import looking

    looking.check(files, as_json=as_json)


@app.command(epilog="Example: [bold]icefront run orders.yaml --until caught-up[/]")
def run(
    files: Files,
    *,
    until: Annotated[Literal["caught-up"] | None, typer.Option(help="Stop when everything resolved is published.")] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", parser=_seconds, metavar="DURATION", help="Stop after so long: 60s, 5m.")
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over a table that has rows but no mark; its rows are kept.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per epoch.")] = False,
) -> None:
    """Run pipelines; one line per epoch. Ctrl-C drains: what is in flight is finished. A second one stops at once."""
    from icefront.cli import running

    running.run(files, until=until, seconds=seconds, adopt=adopt, as_json=as_json)


@app.command(epilog="Example: [bold]icefront status --max-lag 5m[/]")
def status(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Pipeline files. Default: all in this folder.", show_default=False),
    ] = None,
    *,
    max_lag: Annotated[
        float | None, typer.Option(parser=_seconds, metavar="DURATION", help="Exit with 6 when a target lags more: 30s, 5m.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show each target's state with its reason, frontier, lag, last epoch and unsettled deletes. Starts no JVM."""
    from icefront.cli import looking

    looking.status(files or [], max_lag=max_lag, as_json=as_json)


@app.command(epilog="Example: [bold]icefront epochs orders.yaml --limit 5[/]")
def epochs(
    file: File,
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many of each target, from the newest back.")] = 20,
    as_json: Json = False,
) -> None:
    """List published epochs: bounds, changes by kind, files, the phases' times, snapshot ids. Starts no JVM."""
    from icefront.cli import looking

    looking.epochs(file, limit=limit, as_json=as_json)


@app.command(epilog="Example: [bold]icefront verify orders.yaml --every-snapshot[/]")
def verify(
    file: File,
    *,
    every_snapshot: Annotated[
        bool, typer.Option("--every-snapshot", help="Compare every snapshot of the pipeline at its own frontier, by time travel.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many rows of each kind to show.")] = 5,
    as_json: Json = False,
) -> None:
    """Rebuild the rows from the source with a reader of its own and compare: missing, extra, differing rows."""
    from icefront.cli import verifying

    verifying.verify(file, every_snapshot=every_snapshot, limit=limit, as_json=as_json)


@app.command(epilog="Example: [bold]icefront changes lake.shop.orders --from 2026-01-31T12:00:00 --keys id[/]")
def changes(
    table: TableName,
    *,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="SNAPSHOT", help="After this one: an id, a time, a tag, a branch. Default: all that is left."
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="SNAPSHOT", help="Up to and with this one. Default: the newest.")
    ] = None,
    net: Annotated[bool, typer.Option("--net", help="Only what remains of all snapshots together.")] = False,
    keys: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS", help="What tells rows apart, for update images: id or a,b. Default: the identifier fields."
        ),
    ] = None,
    proof: Annotated[
        bool, typer.Option("--verify", help="Prove it: before, minus deletes, plus inserts, is after. Exit code 7 if not.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many changes to show, from the first.")] = 20,
    as_json: Json = False,
) -> None:
    """Show the row changes between snapshots of any Iceberg table, whatever writes it."""
    from icefront.cli import changing

    wanted = None if keys is None else [key.strip() for key in keys.split(",") if key.strip()]
    changing.changes(table, begin, end, net=net, keys=wanted, proof=proof, limit=limit, as_json=as_json)


@app.command(epilog="Example: [bold]icefront settle lake.shop.orders[/]")
def settle(table: TableName, *, as_json: Json = False) -> None:
    """Turn a table's equality deletes into deletion vectors (format 3) or position deletes (format 2), which every engine reads fast."""
    from icefront.cli import upkeeping

    upkeeping.settle(table, as_json=as_json)


@app.command(epilog="Example: [bold]icefront compact lake.shop.orders --max-bytes 10GiB[/]")
def compact(
    table: TableName,
    *,
    sort: Annotated[
        str,
        typer.Option(
            metavar="COLUMNS",
            help="Sort rows by these: id or a,b; auto: the table's own order, or else its key; off: not at all.",
        ),
    ] = "auto",
    max_bytes: Annotated[
        int | None, typer.Option(parser=_bytes, metavar="SIZE", help="Rewrite at most about so much, the smallest files first.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Rewrite all files, not only those that are worth it.")] = False,
    as_json: Json = False,
) -> None:
    """Rewrite small files into large ones, and files with many deleted rows without them. Nobody sees another row."""
    from icefront.cli import upkeeping

    upkeeping.compact(table, sort=sort, max_bytes=max_bytes, everything=everything, as_json=as_json)


@app.command(epilog="Example: [bold]icefront expire lake.shop.orders --keep 7d --at-least 10[/]")
def expire(
    table: TableName,
    *,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Snapshots that are older go. Default: the table's own history.expire.max-snapshot-age-ms, else 5d.",
        ),
    ] = None,
    at_least: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="So many of the last snapshots stay, however old they are. "
            "Default: the table's own history.expire.min-snapshots-to-keep, else 1.",
        ),
    ] = None,
    orphans: Annotated[
        str, typer.Option(metavar="DURATION", help="Files that nothing knows are deleted when they are older; off: never.")
    ] = "3d",
    as_json: Json = False,
) -> None:
    """Take old snapshots out of a table, and delete files that nobody needs any more. Tags and branches hold theirs."""
    from icefront.cli import upkeeping

    wait = None if orphans == "off" else _seconds(orphans)
    upkeeping.expire(table, keep=None if keep is None else _seconds(keep), at_least=at_least, orphans_after=wait, as_json=as_json)


@app.command(epilog="Example: [bold]icefront upkeep orders.yaml --once[/]")
def upkeep(
    files: Files,
    *,
    once: Annotated[bool, typer.Option("--once", help="Do what is due now, then end. Default: go on until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per cycle.")] = False,
) -> None:
    """Settle, compact and expire the targets of pipelines when their settings say so, in a process of its own."""
    from icefront.cli import running

    running.upkeep(files, once=once, as_json=as_json)


@app.command(epilog="Example: [bold]icefront prove --minutes 10[/]")
def prove(
    *,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="For how long. From 3 on, every kind of fault must have been struck.")
    ] = 3.0,
    seed: Annotated[int | None, typer.Option(help="Which faults, and when. Default: a new one; it is printed.")] = None,
    catalog: Annotated[Literal["sqlite", "rest"], typer.Option(help="Which catalog the runs write to.")] = "sqlite",
    uri: Annotated[
        str | None, typer.Option(help="The address of a REST catalog of your own, http://…; a fault proxy comes before it.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the folder with feeds, tables and logs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Random faults against real processes, and a table of what was survived. Exit code 7 when something was not."""
    from icefront.cli import proving

    proving.prove(minutes=minutes, seed=seed, catalog=catalog, uri=uri, keep=keep, as_json=as_json)
