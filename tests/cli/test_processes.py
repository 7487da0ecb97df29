"""The command line as people use it: real processes, from `init` to `verify`, and the demo."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icefront.proof.failpoints import ENVIRONMENT, FAILPOINTS
from icefront.proof.harness import PROGRAM, Begin, Driver, executed
from tests.conftest import lean
from tests.process.forked import forked

pytestmark = pytest.mark.process
EPOCHS = 6


def command(*arguments: str) -> list[str]:
    return [*PROGRAM, *arguments]


def icefront(folder: Path, *arguments: str, code: int = 0, begin: Begin = forked) -> str:
    with Driver(command(*arguments), folder, lean(), begin) as driver:
        driver.expect(code, timeout=600)
    assert "Traceback" not in driver.stderr
    return driver.stdout


def listed(folder: Path, *arguments: str, code: int = 0) -> list[Any]:
    found: list[Any] = json.loads(icefront(folder, *arguments, "--json", code=code))
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample project whose pipeline has run, until Ctrl-C drained it after its last epoch."""
    folder = tmp_path_factory.mktemp("cli") / "shop"
    icefront(folder.parent, "init", "shop")
    with running(folder, "run", "orders.yaml", "--json") as process:
        events = [json.loads(next_line(process)) for _ in range(EPOCHS)]
        assert [event["event"] for event in events] == ["epoch"] * EPOCHS
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "finishing what is in flight" in said
    assert json.loads(rest)["drained"] is True
    return folder


@pytest.mark.parametrize("begin", [executed, forked])
@pytest.mark.parametrize("arguments", [["run", "orders.yaml"], ["settle", "lake.shop.orders"], ["status"]], ids=" ".join)
def test_a_mistyped_failpoint_ends_a_command_with_the_names_that_there_are(
    tmp_path: Path, arguments: list[str], begin: Begin
) -> None:
    environment = {**lean(), ENVIRONMENT: "publish.beforecommit=kill"}
    with Driver(command(*arguments), tmp_path, environment, begin) as driver:
        driver.expect(2)
    known = ", ".join(FAILPOINTS)
    assert driver.stderr == f'error: {ENVIRONMENT}: there is no failpoint "publish.beforecommit"\n  → known are {known}\n'


class running:  # noqa: N801 — reads as what it is
    """A process as people start it, with no settings of tests; it is gone afterwards, whatever happens."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            command(*arguments),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "subprocess.Popen[str]":
        return self.process

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def next_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(process.stderr.read())
    return line


def test_ctrl_c_drains_and_nothing_is_left_to_do(project):
    (status,) = listed(project, "status", "orders.yaml", "--max-lag", "1s")
    assert (status["state"], status["lag_seconds"], status["staged_epochs"]) == ("caught-up", 0.0, 0)


def test_epochs_show_what_was_published_and_how_long_it_took(project):
    rows = listed(project, "epochs", "orders.yaml")
    assert len(rows) == EPOCHS
    assert rows[0]["changes"]["upserts"] == 200
    assert {"write", "stage", "publish"} <= set(rows[0]["seconds"])
    assert len({row["snapshot_id"] for row in rows}) == EPOCHS


def test_check_says_where_a_run_goes_on(project):
    assert any("a run goes on from" in finding["fact"] for finding in listed(project, "check", "orders.yaml"))


def test_the_table_equals_the_source_at_every_snapshot(project):
    compared = listed(project, "verify", "orders.yaml", "--every-snapshot")
    assert len(compared) == EPOCHS + 1  # and the claim
    assert all(point["equal"] for point in compared)
    assert compared[-1]["rows"] > 200


def test_verify_names_missing_extra_and_differing_rows_and_exits_with_7(project, tmp_path):
    """The feed is changed after the run: then the table differs from it, in three ways."""
    copy = tmp_path / "shop"
    subprocess.run(["cp", "-r", str(project), str(copy)], check=True)
    file = copy / "icefront.yaml"
    file.write_text(file.read_text().replace("path: .icefront", f"path: {project}/.icefront"))
    gone, other = change_feed(copy / "feed")
    said = icefront(copy, "verify", "orders.yaml", code=7).splitlines()
    (missing,) = [line for line in said if "missing: the source has" in line]
    assert f'"id": {10**6}' in missing
    (extra,) = [line for line in said if "extra: only the table has" in line]
    assert f'"id": {gone},' in extra
    (differing,) = [line for line in said if "differing:" in line]
    assert f'key [{other}], column status: the source has "lost", the table "' in differing


def change_feed(feed: Path) -> tuple[int, int]:
    """Say once more, later than all else: one key deleted, one with another status, one that is new."""
    lines = [json.loads(line) for file in sorted(feed.rglob("*.ndjson")) for line in file.read_text().splitlines()]
    resolved = max(json.loads(file.read_text())["resolved"] for file in feed.rglob("*.RESOLVED"))
    last = {line["key"][0]: line for line in sorted(lines, key=lambda line: line["updated"]) if line["updated"] <= resolved}
    alive = [line for line in last.values() if line["after"]]
    gone, other = alive[0], alive[1]
    new = {**other, "key": [10**6], "after": {**other["after"], "id": 10**6}}
    added = [
        {"after": None, "key": gone["key"], "updated": resolved},
        {**other, "after": {**other["after"], "status": "lost"}, "updated": resolved},
        {**new, "updated": resolved},
    ]
    newest = max(feed.rglob("*.ndjson"))
    newest.write_text(newest.read_text() + "".join(json.dumps(line) + "\n" for line in added))
    return gone["key"][0], other["key"][0]


def test_the_demo_shows_all_that_it_claims(tmp_path):
    said = icefront(tmp_path, "demo", "--dir", str(tmp_path / "demo"), begin=executed)  # it starts runs of its own
    assert "the zombie was refused: exit code 4" in said
    assert "resumed without rewriting" in said
    assert "All of it held" in said
    assert no_process_of(tmp_path / "demo")
    assert {row["state"] for row in listed(tmp_path / "demo", "status")} == {"caught-up"}


def no_process_of(folder: Path) -> bool:
    return not [pid for pid in processes() if working_in(pid) == folder]


def processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def working_in(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None
