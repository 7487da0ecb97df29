"""The pinned jars that Spark needs beside PySpark: named in a lock file, fetched by coordinates, verified, kept.

    jars.lock ──▶ in $ICEFRONT_JARS?  ──▶ take from there, sha256 checked, never fetch
             └──▶ in the cache?       ──▶ done (only verified files ever get their final name)
                  └─▶ Ivy, which PySpark ships ──▶ temporary folder ──▶ sha256 ──▶ rename into the cache

Why not `spark.jars.packages`: it resolves anew at every start (about 4 s) and checks nothing against our pins. Handing over
paths as `spark.jars` is quicker, and a jar that is not byte for byte the one we tested never reaches a JVM.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from xml.sax.saxutils import quoteattr

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from icefront.core.errors import ConfigError, ConnectionFailed, IcefrontError
from icefront.spark import java

LOCK = Path(__file__).with_name("jars.lock")
RUNTIME = "runtime"

_CLOSED = "ICEFRONT_JARS"
_CACHE = "ICEFRONT_CACHE"
_IVY_SETTINGS = "ICEFRONT_IVY_SETTINGS"
_UNFINISHED = ".fetch-"
_POLL = 0.1
_PLAIN_EVERY = 5.0
_FETCH_WITHIN = 1800.0

# Ivy's own default for an ibiblio resolver is the public Maven repository, so no address stands here.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of a lock file."""

    group: str
    organisation: str
    artifact: str
    version: str
    classifier: str
    sha256: str
    size: int

    @property
    def coordinates(self) -> str:
        return ":".join(part for part in (self.organisation, self.artifact, self.version, self.classifier) if part)

    @property
    def file_name(self) -> str:
        return "-".join(part for part in (self.artifact, self.version, self.classifier) if part) + ".jar"


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such file, or one of another size."""


@dataclass(frozen=True, slots=True)
class Altered:
    """The file is there but is not the one that the lock names."""

    sha256: str


@dataclass(frozen=True, slots=True)
class Intact:
    """The file is byte for byte the one that the lock names."""


Condition = Missing | Altered | Intact


def ensure(group: str = RUNTIME, *, lock: Path = LOCK) -> list[Path]:
    """Return the paths of one group's jars, fetching what is not there yet.

    The quick way looks at names and sizes only: a file gets its final name in the cache after its checksum was verified, never
    before. `inspect` reads every byte again (`icefront doctor`).
    """
    wanted = locked(group, lock=lock)
    closed = os.environ.get(_CLOSED)
    if closed:
        return _from_folder(wanted, Path(closed))
    folder = cache_folder()
    if any(not _in_place(jar, folder) for jar in wanted):
        _fill(folder, wanted)
    return [folder / jar.file_name for jar in wanted]


def locked(group: str | None = None, *, lock: Path = LOCK) -> list[Jar]:
    """The jars that the lock file names, all or one group's."""
    try:
        lines = lock.read_text(encoding="utf-8").splitlines()
    except OSError as failure:
        raise ConfigError(f"the jar lock {lock} cannot be read: {failure.strerror}.", "reinstall icefront") from failure
    jars = [_parse(line, f"{lock}:{number}") for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    chosen = [jar for jar in jars if group in {None, jar.group}]
    if not chosen:
        known = ", ".join(sorted({jar.group for jar in jars})) or "none"
        raise ConfigError(f'{lock.name} has no jars of the group "{group}" (there are: {known}).', "choose one of those")
    return chosen


def inspect(jar: Jar) -> tuple[Path, Condition]:
    """Where this jar is looked for, and whether it is there and unaltered. Reads it whole; fetches nothing."""
    path = _home() / jar.file_name
    return path, _condition(path, jar)


def cache_folder() -> Path:
    """`$ICEFRONT_CACHE/jars`, else `$XDG_CACHE_HOME/icefront/jars`, else `~/.cache/icefront/jars`."""
    if own := os.environ.get(_CACHE):
        return Path(own).expanduser().absolute() / "jars"
    shared = os.environ.get("XDG_CACHE_HOME")
    base = Path(shared) if shared else Path.home() / ".cache"
    return base.absolute() / "icefront" / "jars"


def _home() -> Path:
    closed = os.environ.get(_CLOSED)
    return Path(closed).expanduser().absolute() if closed else cache_folder()


def _parse(line: str, where: str) -> Jar:
    try:
        group, coordinates, sha256, size = line.split()
        organisation, artifact, version, *classifier = coordinates.split(":")
        return Jar(group, organisation, artifact, version, "".join(classifier), sha256, int(size))
    except ValueError as failure:
        raise ConfigError(f"{where}: expected `group coordinates sha256 bytes`, found {line!r}.", "repair the line") from failure


def _condition(path: Path, jar: Jar) -> Condition:
    if not path.is_file():
        return Missing()
    found = _sha256(path)
    return Intact() if found == jar.sha256 else Altered(found)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _in_place(jar: Jar, folder: Path) -> bool:
    try:
        return (folder / jar.file_name).stat().st_size == jar.size
    except OSError:
        return False


# ── closed networks ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_folder(wanted: Sequence[Jar], folder: Path) -> list[Path]:
    """Take the jars from the user's folder. It is not ours, so every byte is checked every time and nothing is changed."""
    folder = folder.expanduser().absolute()
    conditions = {jar: _condition(folder / jar.file_name, jar) for jar in wanted}
    missing = [jar for jar, condition in conditions.items() if isinstance(condition, Missing)]
    if missing:
        names = "\n".join(f"    {jar.coordinates}  as {jar.file_name}  sha256 {jar.sha256}" for jar in missing)
        raise ConfigError(
            f"{_CLOSED} is {folder}, which lacks {_count(missing)}:\n{names}",
            f"put {'it' if len(missing) == 1 else 'them'} there, or unset {_CLOSED} to fetch",
        )
    for jar, condition in conditions.items():
        if isinstance(condition, Altered):
            raise ConfigError(_differs(jar, folder / jar.file_name, condition), f"put the right {jar.file_name} there")
    return [folder / jar.file_name for jar in wanted]


# ── fetching ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _fill(folder: Path, wanted: Sequence[Jar]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            missing = [jar for jar in wanted if not _in_place(jar, folder)]
            if missing:
                _fetch(missing, folder)
    except OSError as failure:
        raise ConfigError(
            f"the jar cache {folder} cannot be written: {failure}.", f"set {_CACHE} to a folder that can"
        ) from failure


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One fetching process at a time: the second one waits and then finds everything there.

    This saves work; safety comes from the rename. Whoever holds the lock may sweep what killed processes left behind.
    """
    with (folder / ".lock").open("w", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process is fetching the jars; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        for leftover in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def _fetch(missing: Sequence[Jar], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder) as name, _meter(missing) as meter:
        work = Path(name)
        said = _run_ivy(missing, work, meter)
        # What did arrive is kept even if the rest did not: on a bad line the next attempt has less to do.
        absent = [jar for jar in missing if not _admit(jar, work, folder)]
        if absent:
            raise _not_fetched(absent, said)


def _admit(jar: Jar, work: Path, folder: Path) -> bool:
    """Give a fetched file its final name, if it is the right one. Otherwise it goes away with the temporary folder."""
    fetched = next(work.rglob(jar.file_name), None)
    if fetched is None:
        return False
    condition = _condition(fetched, jar)
    if isinstance(condition, Altered):
        raise ConnectionFailed(
            f"what came as {_differs(jar, Path(jar.file_name), condition)} It was not kept.",
            "something between here and the repository alters files: try another network, or see docs/closed-networks.md",
        )
    fetched.chmod(0o644)
    fetched.replace(folder / jar.file_name)
    return True


def _run_ivy(missing: Sequence[Jar], work: Path, meter: Meter) -> str:
    """Let Ivy bring `missing` somewhere below `work` and return what it said. Its exit code tells nothing that the files do not."""
    module = work / "ivy.xml"
    module.write_text(_module(missing), encoding="utf-8")
    said = work / "said.txt"
    command = [str(java.require_java().executable), *_proxy_flags(), "-cp", str(_ivy_jar()), "org.apache.ivy.Main"]
    command += ["-settings", str(_settings(work)), "-cache", str(work / "ivy"), "-ivy", str(module), "-confs", "default"]
    command += ["-types", "jar", "-retrieve", f"{work}/out/[artifact]-[revision](-[classifier]).[ext]", "-warn"]
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            _watch(process, work / "ivy", meter)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    return said.read_text(encoding="utf-8", errors="replace")


def _settings(work: Path) -> Path:
    chosen = os.environ.get(_IVY_SETTINGS)
    if not chosen:
        path = work / "settings.xml"
        path.write_text(_SETTINGS, encoding="utf-8")
        return path
    path = Path(chosen).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"{_IVY_SETTINGS} is {chosen}, but there is no such file.", "name an ivysettings.xml, or unset it")
    return path


def _module(wanted: Sequence[Jar]) -> str:
    """An Ivy module that asks for exactly these artifacts: nothing transitive, and two versions of one module may stand side by side."""
    modules: dict[tuple[str, str, str], list[Jar]] = {}
    for jar in wanted:
        modules.setdefault((jar.organisation, jar.artifact, jar.version), []).append(jar)
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
        '  <info organisation="icefront" module="jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        "  <dependencies>\n"
        + "".join(_dependency(*module, artifacts) for module, artifacts in modules.items())
        + '    <conflict manager="all"/>\n  </dependencies>\n</ivy-module>\n'
    )


def _dependency(organisation: str, name: str, version: str, artifacts: Sequence[Jar]) -> str:
    """One module; of a module that is named twice Ivy would keep the last naming only."""
    asked = "".join(
        f'<artifact name={quoteattr(name)} type="jar" ext="jar"'
        + (f" m:classifier={quoteattr(jar.classifier)}/>" if jar.classifier else "/>")
        for jar in artifacts
    )
    return (
        f"    <dependency org={quoteattr(organisation)} name={quoteattr(name)} rev={quoteattr(version)}"
        f' transitive="false" conf="default->*">{asked}</dependency>\n'
    )


def _ivy_jar() -> Path:
    """The Ivy inside PySpark, found without importing PySpark (importing it is slow and we may run before Spark is wanted)."""
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or []) if spec else []
    found = [jar for place in places for jar in sorted(Path(place).glob("jars/ivy-*.jar"))]
    if not found:
        what = "has no jars/ivy-*.jar" if places else "is not installed"
        raise ConfigError(f"the jars are fetched through PySpark, which {what}.", 'pip install "icefront[spark]"')
    return found[-1]


def _proxy_flags() -> list[str]:
    """Java does not read HTTPS_PROXY, but people behind a proxy have set exactly that."""
    flags = []
    for scheme, address in urllib.request.getproxies_environment().items():
        proxy = urllib.parse.urlsplit(address if "//" in address else f"//{address}")
        if scheme in {"http", "https"} and proxy.hostname:
            flags += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    return flags


def _not_fetched(absent: Sequence[Jar], said: str) -> ConnectionFailed:
    names = ", ".join(jar.coordinates for jar in absent)
    return ConnectionFailed(
        f"{_count(absent)} could not be fetched ({names}): {_reason(said)}.",
        "check the network (HTTPS_PROXY is honoured) and run the same command again; without a network put the jars into a "
        f"folder and set {_CLOSED}, with a mirror set {_IVY_SETTINGS} (docs/closed-networks.md)",
    )


def _reason(said: str) -> str:
    """The one line of Ivy's report that says why: a refused connection explains more than the `not found` that follows from it."""
    lines = [line.strip().strip(":").strip() for line in said.splitlines()]
    tellings = [line for line in lines if "access error" in line] + [line for line in lines if line.endswith("not found")]
    return tellings[0] if tellings else (" ".join(said.split())[-300:] or "Ivy gave no reason")


def _differs(jar: Jar, path: Path, altered: Altered) -> str:
    return f"{path} ({jar.coordinates}) has sha256 {altered.sha256}, the lock says {jar.sha256}."


# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Meter(Protocol):
    """Is told how many bytes have come so far."""

    def at(self, done: int) -> None: ...


class _PlainMeter:
    def __init__(self, total: int) -> None:
        self._total = total
        self._next = time.monotonic() + _PLAIN_EVERY

    def at(self, done: int) -> None:
        if time.monotonic() >= self._next:
            self._next += _PLAIN_EVERY
            _say(f"  {_megabytes(done)} of {_megabytes(self._total)}")


class _BarMeter:
    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)

    def at(self, done: int) -> None:
        self._progress.update(self._task, completed=done)


@contextmanager
def _meter(missing: Sequence[Jar]) -> Iterator[Meter]:
    """A bar on a terminal, plain lines in a log; a last line with the time either way."""
    total = sum(jar.size for jar in missing)
    started = time.monotonic()
    _say(
        f"fetching {_count(missing)} ({_megabytes(total)}): {', '.join(jar.file_name for jar in missing[:3])}{' …' if missing[3:] else ''}"
    )
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("  jars"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            yield _BarMeter(progress, total)
    else:
        yield _PlainMeter(total)
    _say(f"  done in {time.monotonic() - started:.1f} s")


def _watch(process: subprocess.Popen[bytes], arriving: Path, meter: Meter) -> None:
    """Follow a running Ivy by the files it writes: its own dots are for nobody."""
    deadline = time.monotonic() + _FETCH_WITHIN
    while True:
        try:
            process.wait(_POLL)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise ConnectionFailed(
                    f"the jars did not arrive within {_FETCH_WITHIN:.0f} s.", "run the same command again"
                ) from None
            meter.at(_arrived(arriving))
        else:
            meter.at(_arrived(arriving))
            return


def _arrived(folder: Path) -> int:
    done = 0
    for path in folder.glob("*/*/jars/*"):
        try:
            done += path.stat().st_size
        except FileNotFoundError:
            continue  # renamed from `.part` between the listing and the look; counted next time
    return done


def _count(jars: Sequence[Jar]) -> str:
    return "1 jar" if len(jars) == 1 else f"{len(jars)} jars"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _say(line: str) -> None:
    """Progress goes to stderr: stdout belongs to whoever called."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


# ── command line ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m icefront.spark.jars`: what `make setup` runs, and what a closed network's courier needs."""
    parser = argparse.ArgumentParser(prog="python -m icefront.spark.jars", description="Fetch and verify the pinned jars.")
    parser.add_argument(
        "--group", action="append", help=f"a group of the lock; may be repeated (default: {RUNTIME}; with --list: all)"
    )
    parser.add_argument("--lock", type=Path, default=LOCK, help="another lock file")
    parser.add_argument("--list", action="store_true", help="print coordinates, file names and checksums; fetch nothing")
    chosen = parser.parse_args(arguments)
    try:
        for group in chosen.group or [None if chosen.list else RUNTIME]:
            if chosen.list:
                lines = [f"{jar.coordinates}  {jar.file_name}  {jar.sha256}" for jar in locked(group, lock=chosen.lock)]
            else:
                lines = [str(path) for path in ensure(group, lock=chosen.lock)]
            sys.stdout.write("".join(f"{line}\n" for line in lines))
    except IcefrontError as error:
        _say(f"error: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
