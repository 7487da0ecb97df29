"""The faults that `icefront prove` strikes with: every kind has a name and a line about it, and is in one of two decks.

    LIVES   how a run goes and ends: killed, paused and overtaken, started twice, …
    BLOWS   what is done while a run stands still for a moment, or while none lives

Before a REST catalog a third deck comes from `proxy`: what happens to requests and their answers.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from icefront.core.errors import ConnectionFailed, IcefrontError
from icefront.proof.checker import FOREIGN, FOREIGN_ROWS, Kind, Violation, files_of, staged_notes
from icefront.proof.failpoints import FailpointError
from icefront.proof.harness import FENCED, KILLED, PATIENCE, Unexpected, wait_until
from icefront.proof.scene import Broken, Scene
from icefront.upkeep.expire import expire
from icefront.upkeep.settle import settle

UNEXPECTED = 1
_PAGE = 4096
_TRIES = 6
_BACK_OFF = 0.1
"""Seconds after the first conflict; twice as many after each one that follows."""
_CONFLICTS = {f"org.apache.iceberg.exceptions.{name}" for name in ("CommitFailedException", "ValidationException")}
"""What Iceberg raises when another commit came between: the second when that one touched the same files."""
STOPS = 2
"""How often a run is stopped on its way, beside the stops that every run has."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. `strike` says whether it could be done now."""

    name: str
    about: str
    strike: Callable[[Scene], bool]


LIVES: dict[str, Fault] = {}
BLOWS: dict[str, Fault] = {}


def _in(deck: dict[str, Fault], name: str, about: str) -> Callable[[Callable[[Scene], bool]], Callable[[Scene], bool]]:
    def register(strike: Callable[[Scene], bool]) -> Callable[[Scene], bool]:
        deck[name] = Fault(name, about, strike)
        return strike

    return register


# ── lives ──────────────────────────────────────────────────────────────────────────────────
BEFORE_COMMIT = (
    "observe.after",
    "write.before",
    "write.after",
    "stage.before",
    "stage.after",
    "publish.before",
    "publish.before-commit",
    "heartbeat.before",
    "heartbeat.before-commit",
)
AFTER_COMMIT = ("publish.after", "heartbeat.after", "note.before", "note.after", "release.before", "release.after")
IN_CLAIM = ("claim.before", "claim.before-commit", "claim.after")
IN_CREATION = ("table.before", "table.after")
IN_ALTERATION = ("schema.before", "schema.after", "partitioning.before", "partitioning.after")
ZOMBIE = ("write.after", "stage.before", "stage.after", "publish.before", "publish.before-commit", "publish.after", "note.before")


def _hurt(scene: Scene, places: Sequence[str], action: str, code: int) -> bool:
    """Start a run that is hurt at one of these places, and see it end so."""
    place = scene.rng.choice(places)
    if not _provoke(scene, place):
        return False
    driver = scene.begin({place: f"{action}@{scene.passing(place)}"}, stops=STOPS)
    scene.follow(driver, STOPS)
    scene.expect(driver, code)
    if action == "raise" and FailpointError.__name__ not in driver.stderr:
        raise Broken(Violation("exit", scene.named(driver), f"the exception of {place}", "another one: see its log"))
    scene.places[place] += 1
    return True


def _provoke(scene: Scene, place: str) -> bool:
    """Give the next run what makes it take this step; False when that cannot be now, for others would take it first."""
    match place.partition(".")[0]:
        case "schema":
            return not scene.rivals and scene.alter()
        case "partitioning":
            if scene.checker.frontier == (0, 0):
                return False  # where there is no table yet, the run makes it as it is to be
            scene.repartition()
        case "heartbeat":
            scene.rest()
            return not scene.rivals
    return True


@_in(LIVES, "killed-before-commit", "a run is killed (SIGKILL) before an epoch is visible: observing, writing, staging")
def _killed_before_commit(scene: Scene) -> bool:
    return _hurt(scene, BEFORE_COMMIT, "kill", KILLED)


@_in(LIVES, "killed-after-commit", "a run is killed after an epoch is visible, before that is noted and released")
def _killed_after_commit(scene: Scene) -> bool:
    return _hurt(scene, AFTER_COMMIT, "kill", KILLED)


@_in(LIVES, "killed-in-claim", "a run is killed while it claims the table")
def _killed_in_claim(scene: Scene) -> bool:
    place = scene.rng.choice(IN_CLAIM)
    driver = scene.start({place: "kill@1"})
    scene.strike()
    scene.expect(driver, KILLED)
    scene.places[place] += 1
    return True


@_in(LIVES, "killed-in-alteration", "a run is killed while it changes the table's schema or partitioning")
def _killed_in_alteration(scene: Scene) -> bool:
    return _hurt(scene, IN_ALTERATION, "kill", KILLED)


@_in(LIVES, "killed-in-recovery", "a run is killed with staged epochs, and the next one while it publishes them")
def _killed_in_recovery(scene: Scene) -> bool:
    if scene.old:
        return False  # they may stage epochs too, and it is counted how many there are
    recovered = scene.staged_chain()
    # No publish gets past the first new epoch, so that staged ones pile up.
    first = scene.begin({"publish.before": f"delay:{PATIENCE:.0f}@{recovered + 1}", "stage.after": "kill@3"}, stops=0)
    scene.follow(first, 0, strike=False)
    scene.expect(first, KILLED)
    place = scene.rng.choice(("publish.before", "publish.before-commit", "publish.after", "note.before", "note.after"))
    second = scene.start({place: f"kill@{scene.rng.randint(1, 2)}"})
    scene.expect(second, KILLED)
    scene.places[place] += 1
    return True


@_in(LIVES, "raised", "a run meets an exception that nobody foresaw")
def _raised(scene: Scene) -> bool:
    return _hurt(scene, (*BEFORE_COMMIT, *AFTER_COMMIT), "raise", UNEXPECTED)


@_in(LIVES, "jvm-killed", "a run's JVM is killed in the middle of its work")
def _jvm_killed(scene: Scene) -> bool:
    driver = scene.begin({}, stops=STOPS)
    killed = False

    def kill() -> None:
        nonlocal killed
        killed = _kill(driver.jvm())

    if not scene.follow(driver, STOPS, last=kill):
        scene.expect(driver)
    scene.expect(driver, ConnectionFailed.exit_code)
    return killed


@_in(LIVES, "worker-killed", "a Python worker of the run's Spark is killed in the middle of a task, which Spark tries again")
def _worker_killed(scene: Scene) -> bool:
    driver = scene.begin({"write.before": f"pause@{scene.passing('write.before')}"}, stops=0)
    if not scene.follow(driver, 1, leave=True):
        scene.expect(driver)
    before, lost = driver.worker_times(), scene.lost_tasks()
    driver.wake()
    killed = _kill(driver.busy_worker(before))
    if driver.code is None:
        os.kill(driver.pid, signal.SIGTERM)
    scene.expect(driver, 0)
    return killed and scene.lost_tasks() > lost


def _kill(pid: int | None) -> bool:
    """Kill a process, and say whether it was there to be killed."""
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@_in(LIVES, "zombie", "a run is paused (SIGSTOP), overtaken by its successor, and woken: it must be refused")
def _zombie(scene: Scene) -> bool:
    place = scene.rng.choice(ZOMBIE)
    # No other stop may come after it: it is there that the run is overtaken.
    driver = scene.begin({place: f"pause@{scene.passing(place)}"}, stops=0)
    if not scene.follow(driver, 1, leave=True):
        scene.expect(driver)
    scene.leave(driver)
    scene.places[place] += 1
    return True


@_in(
    LIVES,
    "two-at-once",
    "two runs claim the table in the same moment: one is refused, the other is later overtaken while it runs",
)
def _two_at_once(scene: Scene) -> bool:
    both = [scene.start({"claim.before-commit": "pause@1"}) for _ in range(2)]
    for driver in both:
        scene.stands(driver)
    scene.strike()
    for driver in both:
        driver.wake()
    scene.grow()
    try:
        wait_until(lambda: any(driver.code is not None for driver in both))
    except Unexpected:
        both_go_on = Violation("stuck", f"{scene.named(both[0])} and {scene.named(both[1])}", "one that is refused", "both go on")
        raise Broken(both_go_on) from None
    refused, other = sorted(both, key=lambda driver: driver.code is None)
    scene.leave(other)
    scene.expect(refused, FENCED)
    return True


@_in(LIVES, "drained", "a run is asked to end (SIGTERM) and finishes what is in flight")
def _drained(scene: Scene) -> bool:
    driver = scene.begin({}, stops=STOPS)
    asked = scene.follow(driver, STOPS)
    if asked:
        os.kill(driver.pid, signal.SIGTERM)
    scene.expect(driver, 0)
    return asked


def _killed_in_creation(scene: Scene) -> bool:
    place = scene.rng.choice(IN_CREATION)
    scene.grow(1)
    scene.expect(scene.start({place: "kill@1"}), KILLED)
    scene.places[place] += 1
    return True


FIRST = Fault("killed-in-creation", "a run is killed while it creates the table", _killed_in_creation)
"""The life with which a scene begins: there is no table yet."""


# ── blows ──────────────────────────────────────────────────────────────────────────────────
@_in(BLOWS, "state-deleted", "the state file is deleted")
def _state_deleted(scene: Scene) -> bool:
    if not scene.state.exists():
        return False
    _remove_state(scene.state)
    return True


def _remove_state(state: Path) -> None:
    for suffix in ("-wal", "-shm", ""):
        Path(f"{state}{suffix}").unlink(missing_ok=True)


@_in(BLOWS, "state-corrupted", "the state file is overwritten with garbage or cut short")
def _state_corrupted(scene: Scene) -> bool:
    size = scene.state.stat().st_size if scene.state.exists() else 0
    if size < 2 * _PAGE:
        return False
    how = scene.rng.choice(("head", "page", "cut"))
    with scene.state.open("r+b") as file:
        if how == "cut":
            file.truncate(size // 2)
        else:
            file.seek(0 if how == "head" else _PAGE * scene.rng.randrange(1, size // _PAGE))
            file.write(scene.rng.randbytes(100 if how == "head" else _PAGE))
    return True


@_in(BLOWS, "state-restored", "the state file is replaced by an older copy of itself")
def _state_restored(scene: Scene) -> bool:
    copy = scene.older_copy()
    if copy is None:
        return False
    _remove_state(scene.state)
    scene.state.write_bytes(copy.read_bytes())
    return True


@_in(BLOWS, "staged-lost", "a file that is staged and not published is deleted while no run lives, as an orphan")
def _staged_lost(scene: Scene) -> bool:
    scene.check()
    staged = [path for path in files_of(staged_notes(scene.state) or ()) if not scene.checker.committed(path)]
    orphans = sorted(path for path in staged if Path(urlsplit(path).path).exists())
    if not scene.deserted or not orphans:
        return False
    path = scene.rng.choice(orphans)
    scene.checker.forgive([path])
    Path(urlsplit(path).path).unlink()
    return True


@_in(BLOWS, "foreign-append", "another program appends rows with keys of its own")
def _foreign_append(scene: Scene) -> bool:
    key = FOREIGN + next(scene.foreign)
    setting = f"spark.sql.iceberg.snapshot-property.{FOREIGN_ROWS}"
    scene.lake.spark.conf.set(setting, str(key))
    try:
        return _by_another_program(scene, f"INSERT INTO {scene.table} (id) VALUES ({key})") is not None  # noqa: S608 — our own names
    finally:
        scene.lake.spark.conf.unset(setting)


@_in(BLOWS, "compaction", "another program rewrites the data files")
def _compaction(scene: Scene) -> bool:
    return _rewrites(scene, "rewrite_data_files", "options => map('rewrite-all', 'true')")


@_in(BLOWS, "manifests", "another program rewrites the manifests")
def _manifests(scene: Scene) -> bool:
    return _rewrites(scene, "rewrite_manifests")


@_in(BLOWS, "settle", "upkeep settles the equality deletes that there are")
def _settle(scene: Scene) -> bool:
    if scene.settled or scene.checker.frontier == (0, 0):
        return False  # there are none
    try:
        return bool(settle(scene.lake.spark, scene.table).snapshots)
    except IcefrontError as error:
        raise Broken(Violation(Kind.UNREADABLE, "settle", "a table that can be settled", str(error))) from error


@_in(BLOWS, "expiry", "another program, or upkeep, expires snapshots and deletes the files that only they had")
def _expiry(scene: Scene) -> bool:
    keep, by = scene.rng.randint(1, 3), scene.rng.choice((_by_a_procedure, _by_upkeep))
    if scene.rivals:
        return False  # what they publish now could expire unseen
    scene.check()  # what expires now is seen for the last time
    before = scene.snapshots()
    return by(scene, keep) and not before <= scene.snapshots()


def _by_a_procedure(scene: Scene, keep: int) -> bool:
    everything = "older_than => TIMESTAMP '2999-01-01 00:00:00'"
    return _procedure(scene, "expire_snapshots", everything, f"retain_last => {keep}") is not None


def _by_upkeep(scene: Scene, keep: int) -> bool:
    notes = staged_notes(scene.state)
    if notes is None or scene.checker.frontier == (0, 0):
        return False  # nobody knows what is staged; or there is nothing to expire
    try:
        expire(scene.lake.spark, scene.table, keep=timedelta(), at_least=keep, staged=files_of(notes))
    except IcefrontError as error:
        raise Broken(Violation(Kind.UNREADABLE, "expire", "a table whose snapshots can expire", str(error))) from error
    return True


def _rewrites(scene: Scene, name: str, *arguments: str) -> bool:
    """Say whether the procedure rewrote any file: it says itself how many."""
    said = _procedure(scene, name, *arguments)
    return said is not None and said[0][0] > 0


def _procedure(scene: Scene, name: str, *arguments: str) -> Sequence[Any] | None:
    catalog, _, table = scene.table.partition(".")
    table = f"table => '{table}'"
    return _by_another_program(scene, f"CALL {catalog}.system.{name}({', '.join([table, *arguments])})")


def _by_another_program(scene: Scene, statement: str) -> Sequence[Any] | None:
    """Run a statement in a session that knows nothing of Icefront, and return what it says; a table that has no rows yet is left alone.

    The run that stands still may have a commit under way in its JVM: a conflict with that is tried again. A rival that is at work may come
    first every time, then nothing is done. Whatever else goes wrong is a table that others cannot use.
    """
    if scene.checker.frontier == (0, 0):
        return None
    for attempt in range(_TRIES):
        try:
            scene.lake.spark.catalog.refreshTable(scene.table)
            answer: Sequence[Any] = scene.lake.spark.sql(statement).collect()
        except Exception as error:  # noqa: BLE001 — whatever Spark makes of it is what is to be told
            said = " ".join(f"attempt {attempt + 1}: {type(error).__name__}: {error}".split())[:400]
            if not is_conflict(error):
                break
            time.sleep(_BACK_OFF * 2**attempt)
        else:
            return answer
    else:
        if scene.rivals:
            return None
    raise Broken(Violation(Kind.UNREADABLE, statement, "a table that another program can use", said))


def is_conflict(error: Exception) -> bool:
    """Say whether a commit of somebody else came first; Spark may have wrapped what Iceberg said about it."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        if cause.getClass().getName() in _CONFLICTS:
            return True
        cause = cause.getCause()
    return False


@_in(BLOWS, "feed-restart", "the changefeed starts again and says everything since its last resolved timestamp once more")
def _feed_restart(scene: Scene) -> bool:
    scene.feed.restart()
    scene.grow(1)
    return True


@_in(BLOWS, "feed-late", "a slow node of the changefeed writes a file with an old name")
def _feed_late(scene: Scene) -> bool:
    if len(scene.feed.resolved) < 3:
        return False
    scene.feed.lag()
    scene.grow(1)
    return True


@_in(BLOWS, "schema-change", "a column is added in the source")
def _schema_change(scene: Scene) -> bool:
    return scene.alter()
