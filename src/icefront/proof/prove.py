"""Random faults against real processes, and what came of them.

    scene 1 ─ life ─ life ─ … ─ a last run with no faults: it must catch up ─▶ scene 2 ─ …
                └─ at each of its stops a blow, and a look at everything

A scene has a table of its own and plays every kind of life once, in the order of a shuffled deck; blows are dealt from another
deck. One seed decides what is done and at which passing of which failpoint, for every life and blow by itself; the clock decides how
many lives there are, which blows are possible at a stop, and which of the requests that were to be struck came at all.
The first thing that must not be ends it, so that the folder shows it as it was.
"""

from __future__ import annotations

import errno
import shutil
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from random import Random
from uuid import uuid4

from icefront.core.errors import IcefrontError
from icefront.proof.checker import Engine, Kind, Violation, by_datafusion, second_engine
from icefront.proof.faults import BLOWS, FIRST, LIVES, Fault
from icefront.proof.harness import PROGRAM, Begin, executed
from icefront.proof.proxy import RANDOM_FAULTS, FaultProxy, Strike, named
from icefront.proof.report import Display, Report
from icefront.proof.scene import Broken, Cut, Lake, Scene
from icefront.proof.trouble import killed_for_memory, look_around, trouble_of

OVERTIME = 6.0
"""A run that has not struck with every kind goes on for up to so many times its minutes."""
DOUBTFUL = {Kind.UNREADABLE, "exit", "stuck", "behind"}
"""What a full disk or a lost catalog explains as well: then it is told, and no violation. All others are seen in the table itself."""
INSISTING = 3
"""Who asks so often to end it is heeded whatever is done at that moment."""
_NOBODY_READS = {errno.EPIPE, errno.EIO}
"""The other end of a pipe is closed, or the terminal is."""
_LAST_RUNS = 3
_PROXY_FAULTS = 3
"""How many requests are struck during each life."""


def kinds(*, rest: bool) -> Mapping[str, str]:
    """Name every kind that a proof strikes with, each with a line about it."""
    requests = {name: _about(name) for name in RANDOM_FAULTS if rest}
    return {fault.name: fault.about for fault in (FIRST, *_lives(rest=rest), *BLOWS.values())} | requests


def _lives(*, rest: bool) -> Sequence[Fault]:
    return [life for life in LIVES.values() if not (rest and life.embedded)]


# ── the decks ──────────────────────────────────────────────────────────────────────────────
class Deck:
    """Kinds in a shuffled order: as far as it can be done, each comes once before one comes again."""

    def __init__(self, names: Iterable[str], rng: Random) -> None:
        self._all = sorted(names)
        self._rng = rng
        self._left: list[str] = []

    def deal(self, strike: Callable[[str], bool]) -> str | None:
        """Strike with the first kind that can be done now; those that cannot keep their turn."""
        if not self._left:
            self._left = self._rng.sample(self._all, len(self._all))
        again = [name for name in self._rng.sample(self._all, len(self._all)) if name not in self._left]
        struck = next((name for name in [*self._left, *again] if strike(name)), None)
        if struck in self._left:
            self._left.remove(struck)
        return struck


# ── the loop ───────────────────────────────────────────────────────────────────────────────
class Prove:
    """One proof in one folder. With `uri`, against a REST catalog of the user's own, through a fault proxy."""

    def __init__(
        self,
        folder: Path,
        display: Display,
        *,
        minutes: float,
        seed: int,
        uri: str | None = None,
        keep: bool = False,
        program: Sequence[str] = PROGRAM,
        begin: Begin = executed,
    ) -> None:
        self._seed = seed
        self._folder = folder
        self._display = display
        self._uri = uri
        self._keep = keep
        self._program = program
        self._begin = begin
        self._blows = Deck(BLOWS, self._choices("blows"))
        self._requests = Deck(RANDOM_FAULTS, self._choices("requests"))
        self._places: dict[str, Deck] = {}
        self._dealt: list[str] = []
        self._begun = time.monotonic()
        self._asked_to_end = 0
        self._leaving = False
        self._killed_for_memory = killed_for_memory()
        self._count: Callable[[], None] = lambda: None
        self._second = Engine()
        self._lives = _lives(rest=uri is not None)
        self.report = Report(seed, minutes, "rest" if uri else "sqlite", kinds(rest=uri is not None), uri=uri)

    def __call__(self) -> Report:
        """Go on until the time is up and every kind was struck, or something is wrong, or Ctrl-C."""
        self._begun = time.monotonic()
        try:
            self._second = second_engine()
            self.report.why_not = self._second.why_not
            with ExitStack() as stack:
                proxy = stack.enter_context(FaultProxy(self._uri)) if self._uri else None
                lake = Lake(self._folder / "lake", self._uri, proxy)
                stack.callback(lake.close)
                stack.callback(self._leave)
                self._play_all(lake)
        except KeyboardInterrupt:
            self.report.interrupted = True
        except Exception as error:
            self.report.error = error if isinstance(error, IcefrontError) else trouble_of(error)
            if self.report.error is None:
                raise
        self.report.seconds = time.monotonic() - self._begun
        return self.report

    def interrupt(self) -> None:
        """End it from a signal. What is raised there may meet a clean-up that swallows it, so it is remembered, too.

        While runs are ended and what they made is removed, it is only remembered, but for those who insist.
        """
        self._asked_to_end += 1
        if not self._leaving or self._asked_to_end >= INSISTING:
            raise KeyboardInterrupt

    def _leave(self) -> None:
        self._leaving = True

    def _heed(self) -> None:
        if self._asked_to_end:
            raise KeyboardInterrupt

    def _play_all(self, lake: Lake) -> None:
        while not self.report.violations and (self.report.scenes == 0 or not self._over()):
            self.report.scenes += 1
            self._play_one(self._folder / f"scene-{self.report.scenes}", lake)

    def _play_one(self, folder: Path, lake: Lake) -> None:
        choices = self._choices("scene", self.report.scenes)
        number = self._seed + self.report.scenes
        # Not by the seed: in a catalog that is not ours alone, what another proof left must not be in the way.
        scene = Scene(folder, f"prove_{uuid4().hex[:12]}", choices, lake, self._program, self._begin, number)
        if self._uri is not None:
            self.report.left.append(scene.name)
        past = replace(self.report)
        self._count = lambda: self._add(past, scene)
        try:
            with scene:
                try:
                    self._play(scene)
                finally:
                    self._leaving = True
        except Broken as broken:
            self._end(scene, broken.violation)
        except KeyboardInterrupt:
            self._part(scene)
            if not (self.report.violations or self.report.doubtful):
                self._clear(scene)
            raise
        except Exception as error:
            if isinstance(error, IcefrontError) or trouble_of(error) is not None:
                self._part(scene)
                raise
            # A table that cannot be looked at any more is what is to be told.
            with suppress(OSError):  # a disk without room must not be one error more
                scene.folder.joinpath("error.txt").write_text(traceback.format_exc(), encoding="utf-8")
            said = " ".join(f"{type(error).__name__}: {error}".split())[:400]
            self._end(scene, Violation(Kind.UNREADABLE, folder.name, "a scene that can be played on", said))
        else:
            self._clear(scene)
        finally:
            self._count()
            self._leaving = self._asked_to_end > 0

    def _part(self, scene: Scene, *found: Violation) -> None:
        """Tell what was seen when something else ends the proof: what only the table explains is a violation, the rest is doubtful."""
        seen = dict.fromkeys([*found, *scene.checker.violations])
        self.report.violations = [violation for violation in seen if violation.kind not in DOUBTFUL]
        self.report.doubtful = [violation for violation in seen if violation.kind in DOUBTFUL]

    def _end(self, scene: Scene, violation: Violation) -> None:
        """End it with something that must not be; raises ConnectionFailed when there is another reason for what was seen."""
        self.report.during = ", ".join([self.report.during, *self._dealt])
        try:
            scene.checker.check()  # what a run did wrong may have left its traces
            if all(found.kind in DOUBTFUL for found in (violation, *scene.checker.violations)):
                scene.lake.look()
                look_around(scene.folder, self._uri, self._killed_for_memory)
        except BaseException:
            self._part(scene, violation)
            raise
        self.report.violations = list(dict.fromkeys([violation, *scene.checker.violations]))

    def _clear(self, scene: Scene) -> None:
        """Remove what nobody has to look at."""
        if not self._keep:
            scene.drop()
            if self._uri is not None:
                self.report.left.remove(scene.name)
            shutil.rmtree(scene.folder)

    def _play(self, scene: Scene) -> None:
        """Play every kind of life once, as far as time allows, then let a run without faults catch up."""
        scene.strike = lambda: self._blow(scene)
        scene.deal, scene.struck = self._deal, self._struck
        lives = deque([FIRST, *scene.rng.sample(self._lives, len(self._lives))])
        put_off = 0
        while lives and put_off < len(lives) and not self._over():
            life = lives.popleft()
            if not self._wanted(life):
                continue
            if self._live(scene, life):
                put_off = 0
            else:
                lives.append(life)
                put_off += 1
        self._finish(scene)

    def _live(self, scene: Scene, life: Fault) -> bool:
        """Play one life; False when it could not be done now."""
        self._heed()
        self.report.during = life.name
        scene.rng = self._choices("scene", self.report.scenes, life.name)
        self._arm(scene)
        scene.strike()
        try:
            lived = life.strike(scene)
        except Cut as cut:
            lived = False
            self._abandon(scene, life.name, cut)
        scene.check()
        if lived:
            if not life.later:
                self._struck(life.name)
            self.report.lives += 1
            self._tell(life.name)
        return lived

    def _abandon(self, scene: Scene, life: str, cut: Cut) -> None:
        """Give up a life whose run lost the catalog by what the proxy did, and count that."""
        scene.abandon()
        self.report.cut[life] += 1
        self._tell(f"{life} was cut short: {cut}")

    def _tell(self, what: str) -> None:
        self._count()
        with self._heard():
            self._display.lived(self.report, ", ".join([what, *self._dealt]))
        self._dealt.clear()

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """Show something; when nobody reads it any more, as behind `| head`, end it as on Ctrl-C."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NOBODY_READS:
                raise
            self.interrupt()

    def _blow(self, scene: Scene) -> None:
        """Deal one blow, if any can be dealt now."""
        self._heed()

        def strike(name: str) -> bool:
            with scene.choosing(self._choices("scene", self.report.scenes, name, self.report.struck[name])):
                return BLOWS[name].strike(scene)

        struck = self._blows.deal(strike)
        if struck is not None:
            self._struck(struck)
            self._dealt.append(struck)
        self._count()
        with self._heard():
            self._display.moved(self.report)

    def _deal(self, life: str, places: Sequence[str], strike: Callable[[str], bool]) -> str | None:
        """Strike at the next of a life's places: over all scenes each comes once before one comes again."""
        return self._places.setdefault(life, Deck(places, self._choices("places", life))).deal(strike)

    def _struck(self, kind: str) -> None:
        self.report.struck[kind] += 1

    def _arm(self, scene: Scene) -> None:
        """Choose the requests that the proxy strikes during the next life: first with what is missing, for not all that is dealt comes."""
        proxy = scene.lake.proxy
        missing = set(self.report.missing).intersection(RANDOM_FAULTS)

        def arm(name: str) -> bool:
            assert proxy is not None
            if missing and name not in missing:
                return False
            missing.discard(name)
            proxy.arm(name, nth=scene.rng.randint(1, 8))
            return True

        for _ in range(_PROXY_FAULTS if proxy else 0):
            self._requests.deal(arm)

    def _finish(self, scene: Scene) -> None:
        """No more faults: a last run must catch up, and a second engine must see the same rows."""
        if (proxy := scene.lake.proxy) is not None:
            proxy.release()
            proxy.disarm()
        self.report.during = "catching up without faults"
        scene.strike = lambda: None
        self._catch_up(scene)
        self.report.engines = [f"Spark {version('pyspark')}"]
        if engine := self._second.name:
            for violation in scene.checker.check_with(engine, by_datafusion):
                raise Broken(violation)
            self.report.engines.append(engine)

    def _catch_up(self, scene: Scene) -> None:
        """Let a run catch up. A fault from before may still reach it, or a run that it overtakes: then another one has to."""
        for _ in range(_LAST_RUNS):
            try:
                return scene.catch_up()
            except Cut as cut:
                self._abandon(scene, self.report.during, cut)
                away = str(cut)
        raise Broken(Violation("behind", scene.folder.name, f"one of {_LAST_RUNS} runs without faults that catches up", away))

    def _choices(self, *what: object) -> Random:
        """Make the choices of one thing: each has its own, so that what time decides here changes nothing there."""
        return Random("/".join(map(str, (self._seed, *what))))  # noqa: S311 — repeatable, not secret

    # ── time and numbers ───────────────────────────────────────────────────────────────────
    def _over(self) -> bool:
        """Say whether to stop: the time is up and nothing is missing, or all patience is spent."""
        minutes = (time.monotonic() - self._begun) / 60
        return minutes >= self.report.minutes and (not self.report.missing or minutes >= OVERTIME * self.report.minutes)

    def _wanted(self, life: Fault) -> bool:
        """Say whether to play a life: after the time only what is missing, or what gives missing blows a chance."""
        in_time = time.monotonic() - self._begun < 60 * self.report.minutes
        others = set(self.report.missing) - set(LIVES)
        return in_time or life is FIRST or life.name in self.report.missing or bool(others)

    def _add(self, past: Report, scene: Scene) -> None:
        """Add a scene's numbers of this moment to those of the scenes before it."""
        report, checker, proxy = self.report, scene.checker, scene.lake.proxy
        report.seconds = time.monotonic() - self._begun
        report.epochs = past.epochs + len(checker.epochs)
        report.changes = past.changes + len(scene.feed.said)
        report.snapshots = past.snapshots + checker.snapshots
        report.rows = past.rows + checker.rows
        report.blind = past.blind + checker.blind
        report.upkeep = past.upkeep + scene.upkeep_commits
        report.places = past.places + scene.places
        if proxy is not None:
            strikes = list(proxy.strikes)
            report.struck |= Counter(strike.fault for strike in strikes if _came(strike))
            report.late = Counter(strike.applied for strike in strikes if _is_late(strike) and strike.answers)


def _is_late(strike: Strike) -> bool:
    return named(strike.fault).catalog == "late"


def _came(strike: Strike) -> bool:
    """Say whether the catalog got a request as the fault says: not at all; after the next one, and refused it; else it applied it."""
    fault = named(strike.fault)
    if fault.catalog == "never":
        return True
    if fault.until == "after next":
        return bool(strike.answers) and not strike.applied
    return strike.applied


def _about(name: str) -> str:
    fault = named(name)
    when = {
        "released": fault.catalog,
        "before look": "late, before its client has looked what came of it",
        "before next": "late, before its client sends it again",
        "after next": "late, after the next one, and is refused",
    }[fault.until]
    return f"a commit reaches the catalog {when}, and its client gets: {fault.client}"
