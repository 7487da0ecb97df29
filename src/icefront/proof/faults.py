"""The faults that `icefront prove` strikes with: every kind has a name and a line about it, and is in one of two decks.

    LIVES   how a run goes and ends: killed, paused and overtaken, started twice, …
    BLOWS   what is done while a run stands still for a moment, or while none lives

Before a REST catalog a third deck comes from `proxy`: what happens to requests and their answers.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.table import Table

from icefront.core.errors import UNEXPECTED, ConnectionFailed, IcefrontError, Stopped
from icefront.core.timestamps import Timestamp
from icefront.proof.checker import FOREIGN, FOREIGN_ROWS, Kind, Violation, files_of, staged_notes
from icefront.proof.failpoints import FailpointError
from icefront.proof.harness import FENCED, KILLED, PATIENCE, Driver, Unexpected, wait_until
from icefront.proof.scene import EVERY_EPOCH, Broken, Cut, Scene, said
from icefront.upkeep.expire import expire
from icefront.upkeep.settle import settle

_PAGE = 4096
_TRIES = 6
_BACK_OFF = 0.1
"""Seconds after the first conflict; twice as many after each one that follows."""
_CONFLICTS = {f"org.apache.iceberg.exceptions.{name}" for name in ("CommitFailedException", "ValidationException")}
"""What Iceberg raises when another commit came between: the second when that one touched the same files."""
_ENDS = 30.0
"""How long to wait, in seconds, for the JVM of a run that was killed."""
_DAY = 86_400
FIVE = 0.1
"""How often five runs begin at once, and not two: they take as long as several lives."""
STOPS = 2
"""How often a run is stopped on its way, beside the stops that every run has."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. `strike` says whether it could be done now."""

    name: str
    about: str
    strike: Callable[[Scene], bool]
    later: bool = False
    """Whether it only counts when the run that it leaves behind is refused: the scene tells when."""
    embedded: bool = False
    """Whether it needs the embedded catalog."""


LIVES: dict[str, Fault] = {}
BLOWS: dict[str, Fault] = {}


def _in(
    deck: dict[str, Fault], name: str, about: str, *, later: bool = False, embedded: bool = False
) -> Callable[[Callable[[Scene], bool]], Callable[[Scene], bool]]:
    def register(strike: Callable[[Scene], bool]) -> Callable[[Scene], bool]:
        deck[name] = Fault(name, about, strike, later, embedded)
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
IN_RECOVERY = ("publish.before", "publish.before-commit", "publish.after", "note.before", "note.after")
IN_UPKEEP = ("settle.before", "settle.before-commit", "settle.after", "compact.before", "compact.before-commit", "compact.after")
ZOMBIE = (*EVERY_EPOCH, "write.before", "release.after")


def _at_one(scene: Scene, life: str, places: Sequence[str], strike: Callable[[str], bool]) -> bool:
    """Strike at that one of these places whose turn it is, and count it there."""
    place = scene.deal(life, places, strike)
    scene.places.update([place] if place else [])
    return place is not None


def _hurt(scene: Scene, life: str, places: Sequence[str], action: str, code: int) -> bool:
    """Start a run that is hurt at one of these places, and see it end so."""

    def strike(place: str) -> bool:
        if not _provoke(scene, place):
            return False
        driver = scene.begin({place: f"{action}@{scene.passing(place)}"}, stops=STOPS)
        scene.follow(driver, STOPS)
        scene.expect(driver, code)
        if action == "raise" and FailpointError.__name__ not in driver.stderr:
            raise Broken(Violation("exit", scene.named(driver), f"the exception of {place}", "another one: see its log"))
        return True

    return _at_one(scene, life, places, strike)


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
            if scene.rivals:
                return False
            scene.rest()
    return True


@_in(LIVES, "killed-before-commit", "a run is killed (SIGKILL) before an epoch is visible: observing, writing, staging")
def _killed_before_commit(scene: Scene) -> bool:
    return _hurt(scene, "killed-before-commit", BEFORE_COMMIT, "kill", KILLED)


@_in(LIVES, "killed-after-commit", "a run is killed after an epoch is visible, before that is noted and released")
def _killed_after_commit(scene: Scene) -> bool:
    return _hurt(scene, "killed-after-commit", AFTER_COMMIT, "kill", KILLED)


@_in(LIVES, "killed-in-claim", "a run is killed while it claims the table")
def _killed_in_claim(scene: Scene) -> bool:
    def strike(place: str) -> bool:
        driver = scene.start({place: "kill@1"})
        scene.strike()
        scene.expect(driver, KILLED)
        return True

    return _at_one(scene, "killed-in-claim", IN_CLAIM, strike)


@_in(LIVES, "killed-in-alteration", "a run is killed while it changes the table's schema or partitioning")
def _killed_in_alteration(scene: Scene) -> bool:
    return _hurt(scene, "killed-in-alteration", IN_ALTERATION, "kill", KILLED)


@_in(LIVES, "killed-in-recovery", "a run is killed with staged epochs, and the next one while it publishes them")
def _killed_in_recovery(scene: Scene) -> bool:
    if scene.old:
        return False  # they may stage epochs too, and it is counted how many there are
    recovered = scene.staged_chain()
    # No publish gets past the first new epoch, so that staged ones pile up.
    first = scene.begin({"publish.before": f"delay:{PATIENCE:.0f}@{recovered + 1}", "stage.after": "kill@3"}, stops=0)
    scene.follow(first, 0, strike=False)
    scene.expect(first, KILLED)

    def strike(place: str) -> bool:
        scene.expect(scene.start({place: f"kill@{scene.rng.randint(1, 2)}"}), KILLED)
        return True

    return _at_one(scene, "killed-in-recovery", IN_RECOVERY, strike)


AT_ONCE = {"settle": {"files": 1, "every": "1s"}, "compact": {"files": 2, "every": "1s"}, "expire": "off"}
"""Upkeep that is due after any two epochs: a run surely comes to do it."""


@_in(LIVES, "killed-in-upkeep", "a run is killed while it settles or compacts, between its epochs")
def _killed_in_upkeep(scene: Scene) -> bool:
    def strike(place: str) -> bool:
        if scene.settled and place.startswith("settle."):
            return False  # it has no equality deletes
        scene.end_leases()
        with scene.keeping(AT_ONCE):
            # Nothing is done by others after its last stop, and all its epochs are still to come.
            driver = scene.begin({place: "kill@1"}, stops=0)
            scene.follow(driver, 0)
            scene.expect(driver, KILLED)
        return True

    return _at_one(scene, "killed-in-upkeep", IN_UPKEEP, strike)


@_in(LIVES, "raised", "a run meets an exception that nobody foresaw")
def _raised(scene: Scene) -> bool:
    return _hurt(scene, "raised", (*BEFORE_COMMIT, *AFTER_COMMIT), "raise", UNEXPECTED)


@_in(LIVES, "jvm-killed-in-a-job", "a run's JVM is killed while workers do a job of its Spark")
def _jvm_killed_in_a_job(scene: Scene) -> bool:
    driver = _standing(scene, "write.before")
    before = driver.worker_times()
    driver.wake()
    return _loses_its_jvm(scene, driver, at_work=driver.busy_worker(before) is not None)


@_in(
    LIVES,
    "jvm-killed-in-a-commit",
    "a run's JVM is killed once the metadata of its commit is written, before or after that is in place",
)
def _jvm_killed_in_a_commit(scene: Scene) -> bool:
    driver = _standing(scene, "publish.before-commit")
    return _loses_its_jvm(scene, driver, at_work=_begins_to_commit(scene, driver))


def _loses_its_jvm(scene: Scene, driver: Driver, *, at_work: bool) -> bool:
    """Kill the JVM of a run that is at work, and see the run end for that; otherwise let it go to its end."""
    if at_work and _kill(driver.jvm()):
        scene.expect(driver, ConnectionFailed.exit_code)
        return True
    scene.drain(driver)
    scene.expect(driver, 0)
    return False


def _begins_to_commit(scene: Scene, driver: Driver) -> bool:
    """Wake a run that stands before its commit, and wait for the new metadata, with which that begins; False when the run ends."""
    before = scene.metadata()
    known = _metadata_files(before)
    driver.wake()
    return scene.sees(driver, lambda: _metadata_files(before) - known, "a commit that is begun")


@_in(LIVES, "worker-killed", "a Python worker of the run's Spark is killed in the middle of a task, which Spark tries again")
def _worker_killed(scene: Scene) -> bool:
    driver = scene.begin({"write.before": f"pause@{scene.passing('write.before')}"}, stops=0)
    if not scene.follow(driver, 1, leave=True):
        scene.expect(driver)
    before, lost = driver.worker_times(), scene.lost_tasks()
    driver.wake()
    killed = _kill(driver.busy_worker(before))
    scene.drain(driver)
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


@_in(LIVES, "zombie", "a run is paused (SIGSTOP), overtaken by its successor, and woken: it must be refused", later=True)
def _zombie(scene: Scene) -> bool:
    def strike(place: str) -> bool:
        # No other stop may come after it: it is there that the run is overtaken.
        driver = _standing(scene, place)
        scene.leave(driver, "zombie")
        return True

    return _at_one(scene, "zombie", ZOMBIE, strike)


def _standing(scene: Scene, place: str) -> Driver:
    """Start a run that is left as it stands at one of its passings of this place."""
    driver = scene.begin({place: f"pause@{scene.passing(place)}"}, stops=0)
    if not scene.follow(driver, 1, leave=True):
        scene.expect(driver)
    return driver


@_in(
    LIVES,
    "several-at-once",
    "two or five runs claim the table in the same moment: all but one are refused, that one is later overtaken while it runs",
)
def _several_at_once(scene: Scene) -> bool:
    claims = {"claim.before-commit": "pause@1", "claim.after": "pause@1"}
    several = [scene.start(claims) for _ in range(5 if scene.rng.random() < FIVE else 2)]
    for driver in several:
        scene.stands(driver)
    scene.strike()
    for driver in several:
        driver.wake()
    # One that has nothing to publish is not refused: what comes next comes when all have claimed.
    for driver in several:
        scene.stands(driver)
    scene.grow()
    for driver in several:
        driver.wake()
    scene.leave(_the_one_that_goes_on(scene, several))
    return True


def _the_one_that_goes_on(scene: Scene, several: Sequence[Driver]) -> Driver:
    """See all but one of several runs refused, and that one publish."""
    names = " and ".join(map(scene.named, several))

    def left() -> Sequence[Driver]:
        return [driver for driver in several if driver.code is None]

    try:
        wait_until(lambda: len(left()) <= 1)
    except Unexpected:
        raise Broken(Violation("stuck", names, "one that goes on", f"{len(left())} go on")) from None
    goes_on = left()
    if goes_on and not scene.sees(goes_on[0], goes_on[0].epochs, "an epoch of its own"):
        goes_on = []
    for driver in several:
        if driver not in goes_on:
            scene.expect(driver, FENCED)
    if not goes_on:
        raise Broken(Violation("stuck", names, "one that goes on", "all were refused"))
    return goes_on[0]


@_in(
    LIVES,
    "rolled-back",
    "another program rolls the table back while a run is about to commit: it must stop, the next one too, and they go on when it is undone",
)
def _rolled_back(scene: Scene) -> bool:
    with scene.keeping("off"):  # its JVM might still commit what it settled
        driver = scene.begin({"publish.before-commit": "pause@2"}, stops=0)
        # No blow at the last stop: an expiry would leave nothing to go back to.
        if not (scene.follow(driver, 0) and scene.stands(driver)):
            scene.expect(driver)
        if scene.lake.proxy is not None:
            scene.lake.proxy.release()
        scene.check()
        older = _older_snapshots(scene.load())
        if not older or not _set_current(scene, scene.rng.choice(older)):
            driver.wake()
            scene.drain(driver)
            scene.expect(driver, 0)
            return False
        try:
            _are_stopped(scene, driver)
        except Cut:
            _set_current(scene, _before_rollback(scene))
            raise
        _set_current(scene, _before_rollback(scene))
    scene.check()
    return True


def _are_stopped(scene: Scene, driver: Driver) -> None:
    """See a run and its successor stop before a table that was rolled back, and leave it as it is."""
    rolled_back = scene.metadata()
    driver.wake()
    _is_stopped(scene, driver)
    _is_stopped(scene, scene.launch({}))
    if (found := scene.metadata()) != rolled_back:
        raise Broken(Violation("rolled-back", scene.table, f"the metadata {rolled_back}", found))


def _is_stopped(scene: Scene, driver: Driver) -> None:
    scene.expect(driver, Stopped.exit_code)
    if "rolled back" not in driver.stderr:
        raise Broken(Violation("exit", scene.named(driver), "a table that was rolled back", "another reason: see its log"))


def _older_snapshots(table: Table | None) -> Sequence[int]:
    """Name the snapshots of the branch, newest first, that end below its frontier by their own word."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots} if table else {}
    frontiers: list[tuple[Timestamp, int]] = []
    at = by_id.get(table.metadata.current_snapshot_id or 0) if table else None
    while at is not None:
        if "icefront.frontier" in said(at):
            frontiers.append((Timestamp.parse(said(at)["icefront.frontier"]), at.snapshot_id))
        at = by_id.get(at.parent_snapshot_id or 0)
    return [snapshot for frontier, snapshot in frontiers if frontier < frontiers[0][0]]


def _before_rollback(scene: Scene) -> int:
    """Name the snapshot that was current before the one that is, by the table's own log."""
    table = scene.load()
    assert table is not None
    return table.metadata.snapshot_log[-2].snapshot_id


def _set_current(scene: Scene, snapshot: int) -> bool:
    return _procedure(scene, "set_current_snapshot", f"snapshot_id => {snapshot}") is not None


@_in(
    LIVES,
    "catalog-locked",
    "another program locks the embedded catalog's database while a run commits, which has to wait",
    embedded=True,
)
def _catalog_locked(scene: Scene) -> bool:
    driver = _standing(scene, "publish.before-commit")
    before = scene.metadata()
    with _locked(scene.lake.folder / "catalog.db"):
        # A commit writes the new metadata, then it asks the catalog to take it.
        begun = _begins_to_commit(scene, driver)
        time.sleep(scene.rng.uniform(0.5, 3.0))
        waited = begun and scene.metadata() == before
    if begun and scene.sees(driver, lambda: scene.metadata() != before, "a commit when the catalog is free again"):
        scene.drain(driver)
    scene.expect(driver, 0)
    return waited


def _metadata_files(one: str) -> AbstractSet[Path]:
    """Find the metadata files that lie beside this one; with a new one an old one may go."""
    return set(Path(urlsplit(one).path).parent.glob("*.metadata.json"))


@contextmanager
def _locked(database: Path) -> Iterator[None]:
    """Keep others from writing to a SQLite file."""
    with closing(sqlite3.connect(database, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("ROLLBACK")


@_in(LIVES, "drained", "a run is asked to end (SIGTERM) and finishes what is in flight")
def _drained(scene: Scene) -> bool:
    driver = scene.begin({}, stops=STOPS)
    asked = scene.follow(driver, STOPS)
    if asked:
        scene.drain(driver)
    scene.expect(driver, 0)
    return asked


def _killed_in_creation(scene: Scene) -> bool:
    def strike(place: str) -> bool:
        if scene.load() is not None:
            return False  # this life was cut short before, and another one has made the table
        scene.grow(1)
        scene.expect(scene.start({place: "kill@1"}), KILLED)
        return True

    return _at_one(scene, "killed-in-creation", IN_CREATION, strike)


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
    if scene.lives:
        return False
    with suppress(Unexpected):  # the JVM of a run that was killed soon ends by itself
        wait_until(lambda: scene.deserted, _ENDS)
    if not scene.deserted:
        return False
    if scene.lake.proxy is not None:
        scene.lake.proxy.release()  # a commit that is late, or on its way, may have it in its hands
    scene.check()
    staged = [path for path in files_of(staged_notes(scene.state) or ()) if not scene.checker.committed(path)]
    orphans = sorted(path for path in staged if Path(urlsplit(path).path).exists())
    if not orphans:
        return False
    path = scene.rng.choice(orphans)
    scene.checker.forgive([path])
    Path(urlsplit(path).path).unlink()
    return True


@_in(BLOWS, "foreign-append", "another program appends rows with keys of its own")
def _foreign_append(scene: Scene) -> bool:
    if scene.checker.frontier == (0, 0):
        return False  # and no session is needed
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


@_in(BLOWS, "respec", "another program rewrites the data files into another partition spec of the table's")
def _respec(scene: Scene) -> bool:
    spec = _another_spec(scene)
    return spec is not None and _rewrites(
        scene, "rewrite_data_files", f"options => map('rewrite-all', 'true', 'output-spec-id', '{spec}')"
    )


def _another_spec(scene: Scene) -> int | None:
    """Choose a spec that the table does not write under now; where it has had one alone, another program gives it a second and takes that back."""
    if scene.checker.frontier == (0, 0) or scene.rivals:
        return None
    if not (others := _other_specs(scene)):
        for change in ("ADD", "DROP"):
            _by_another_program(scene, f"ALTER TABLE {scene.table} {change} PARTITION FIELD bucket(3, id)")
        others = _other_specs(scene)
    return scene.rng.choice(others)


def _other_specs(scene: Scene) -> Sequence[int]:
    table = scene.load()
    return sorted(table.specs().keys() - {table.metadata.default_spec_id}) if table else []


@_in(BLOWS, "orphans", "another program removes old files that no snapshot knows")
def _orphans(scene: Scene) -> bool:
    table = scene.load()
    if table is None or scene.checker.frontier == (0, 0):
        return False
    orphan = Path(urlsplit(table.location()).path, "data", f"lost-{scene.rng.getrandbits(32):08x}.parquet")
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(scene.rng.randbytes(_PAGE))
    now = time.time()
    os.utime(orphan, (now - 4 * _DAY, now - 4 * _DAY))
    older = f"older_than => TIMESTAMP '{datetime.fromtimestamp(now - 3 * _DAY, UTC):%F %T}'"
    return _procedure(scene, "remove_orphan_files", older) is not None and not orphan.exists()


@_in(BLOWS, "manifests", "another program rewrites the manifests")
def _manifests(scene: Scene) -> bool:
    return _rewrites(scene, "rewrite_manifests")


@_in(BLOWS, "settle", "upkeep settles the equality deletes that there are")
def _settle(scene: Scene) -> bool:
    if scene.settled or scene.checker.frontier == (0, 0):
        return False  # there are none
    try:
        landed = settle(scene.lake.spark, scene.table).snapshots
    except IcefrontError as error:
        raise Broken(Violation(Kind.UNREADABLE, "settle", "a table that can be settled", str(error))) from error
    scene.by_hand |= set(landed)
    return bool(landed)


@_in(BLOWS, "expiry", "another program, or upkeep, expires snapshots and deletes the files that only they had")
def _expiry(scene: Scene) -> bool:
    keep, by = scene.rng.randint(1, 3), scene.rng.choice((_by_a_procedure, _by_upkeep))
    if scene.rivals:
        return False  # what they publish now could expire unseen
    if not scene.deserted:
        keep += 2  # the JVM of a run that stands still may have a publish and an upkeep under way
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
    answer = _procedure(scene, name, *arguments)
    return answer is not None and answer[0][0] > 0


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
            told = " ".join(f"attempt {attempt + 1}: {type(error).__name__}: {error}".split())[:400]
            if not is_conflict(error):
                break
            time.sleep(_BACK_OFF * 2**attempt)
        else:
            return answer
    else:
        if scene.rivals:
            return None
    raise Broken(Violation(Kind.UNREADABLE, statement, "a table that another program can use", told))


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
