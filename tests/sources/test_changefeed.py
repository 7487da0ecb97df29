"""The changefeed as a source: cuts, positions, restarts, races."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from icefront.core.epochs import Epoch, Minting, mint, origin_id
from icefront.core.errors import ConfigError, ConnectionFailed, Overcompacted, Stopped
from icefront.core.marks import POSITION_LIMIT, START, Mark, Position, Writer
from icefront.core.ports import Source
from icefront.core.protocol import check_resume
from icefront.core.timestamps import ORIGIN, Timestamp
from icefront.sources.changefeed import Changefeed, Place
from icefront.sources.changefeed_names import day_of
from icefront.sources.changefeed_store import Entry, LocalStore, Stat, Store
from icefront.sources.changefeed_waiting import NAMED
from icefront.testing.feeds import BEGIN, SECOND, SHOP, Feed, FeedWriter
from tests.sources.drive import Target, read, schema_of

SCHEMA = schema_of({"id": "long", "v": "string"})
DAY = 86_400


def at(seconds: float) -> Timestamp:
    return BEGIN.plus(seconds)


def line(key: int, when: Timestamp) -> str:
    return f'{{"after": {{"id": {key}, "v": "x"}}, "key": [{key}], "updated": "{when}"}}\n'


@dataclass
class Hand:
    """A feed written by hand, file by file, with the time of each file."""

    root: Path
    files: int = 0
    codec: str = ""
    partition: str = "daily"

    def data(
        self, name: float, *rows: tuple[int, float], table: str = "t", schema_id: int = 1, written: float | None = None
    ) -> Path:
        self.files += 1
        text = "".join(line(key, at(when)) for key, when in rows).encode()
        when = at(name if written is None else written).wall
        writer = FeedWriter(self.root, self.codec, self.partition)
        return writer.data(at(name), f"56087568dba1e6b8-1-72-{self.files:08x}", table, schema_id, text, when)

    def resolve(self, seconds: float, written: float | None = None) -> Path:
        when = at(seconds if written is None else written).wall
        return FeedWriter(self.root, self.codec, self.partition).resolved(at(seconds), when)

    def source(self, **options: Any) -> Changefeed:
        return Changefeed(str(self.root), keys={"t": ["id"], "u": ["id"]}, clock_margin=0, **options)


@pytest.fixture
def hand(tmp_path: Path) -> Hand:
    return Hand(tmp_path)


def frontiers(source: Changefeed, after: Position = START) -> list[Timestamp]:
    return [cut.frontier for cut in source.observe(after, ["t"]).cuts]


def take(source: Changefeed, target: Target, upper: float) -> list[int]:
    """Take the epoch up to the resolved timestamp at `upper` seconds; return the keys that changed."""
    before = len(target.changes)
    target.take(source, at(upper).next())
    return [key[0] for key, _ in target.changes[before:]]


def target(table: str = "t") -> Target:
    return Target(table, ["id"], SCHEMA)


def test_it_is_a_source(hand: Hand):
    source: Source = hand.source()
    assert source.keys("t") == ("id",)


# ── cuts ───────────────────────────────────────────────────────────────────────────────────
def test_each_resolved_timestamp_is_a_cut_at_its_successor(hand: Hand):
    hand.data(0, (1, 0))
    hand.resolve(1)
    hand.resolve(2)
    assert frontiers(hand.source()) == [at(1).next(), at(2).next()]


def test_a_feed_without_resolved_files_has_no_cuts_and_may_be_begun(hand: Hand):
    hand.data(0, (1, 0))
    observation = hand.source().observe(START, ["t"])
    assert observation.cuts == ()
    assert observation.earliest == ORIGIN


def test_the_first_cut_of_a_new_feed_can_be_minted(hand: Hand):
    hand.data(0, (1, 0))
    hand.resolve(1)
    observation = hand.source().observe(START, ["t"])
    epochs = mint(Minting(every=None), ORIGIN, observation.earliest, observation.cuts, open_epochs=0, flush=True)
    assert epochs == [Epoch(ORIGIN, at(1).next())]


def test_sizes_estimate_the_changes_between_cuts(hand: Hand):
    hand.data(0, *((n, 0.5) for n in range(100)))
    hand.resolve(1)
    hand.resolve(2)
    hand.data(2.5, *((n, 2.5) for n in range(10)))
    hand.data(2.5, (1, 2.5), table="u")
    hand.resolve(3)
    sizes = [cut.size for cut in hand.source().observe(START, ["t"]).cuts]
    assert 40 < sizes[0] < 200
    assert sizes[1] == 0
    assert 4 < sizes[2] < 20


def test_estimates_learn_from_what_was_read(hand: Hand):
    hand.data(0, *((n, 0.5) for n in range(20_000)))
    hand.resolve(1)
    source, t = hand.source(), target()
    before = source.observe(START, ["t"]).cuts[0].size
    take(source, t, 1)
    hand.data(1.5, *((n, 1.5) for n in range(1000)))
    hand.resolve(2)
    after = source.observe(t.position, ["t"]).cuts[0].size
    assert abs(before / 20 - 1000) > abs(after - 1000)


def test_changes_left_over_in_an_older_file_are_counted_to_their_cut(hand: Hand):
    hand.data(0, (1, 0.5), (2, 2.5))
    hand.resolve(1)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    take(source, t, 1)
    hand.resolve(2)
    hand.resolve(3)
    assert [cut.size > 0 for cut in source.observe(t.position, ["t"]).cuts] == [False, True]
    assert [cut.size > 0 for cut in hand.source().observe(t.position, ["t"]).cuts] == [True, False]


def test_an_epoch_ends_where_a_schema_version_begins(hand: Hand):
    hand.data(0, (1, 0))
    for seconds in (1, 2, 3):
        hand.resolve(seconds)
    hand.data(2.5, (1, 2.5), schema_id=2)
    hand.data(1.5, (1, 1.5), table="u", schema_id=7)
    hand.data(0.5, (1, 0.5), table="u", schema_id=6)
    source = hand.source()
    assert [c.schema_changes_after for c in source.observe(START, ["t"]).cuts] == [False, True, False]
    assert [c.schema_changes_after for c in source.observe(START, ["t", "u"]).cuts] == [True, True, False]


# ── listing again ──────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Watched:
    """A directory that does something while it is being listed."""

    inner: LocalStore
    hooks: list[Callable[[], object]] = field(default_factory=list)

    def where(self, path: str = "") -> str:
        return self.inner.where(path)

    def top(self) -> Iterator[Entry]:
        return self.inner.top()

    def walk(self, folder: str) -> Iterator[Entry]:
        found = list(self.inner.walk(folder))
        if self.hooks:
            self.hooks.pop(0)()
        yield from found
        # What appeared meanwhile: a listing may show it, as it may not.
        yield from (e for e in self.inner.walk(folder) if e.name.endswith(".RESOLVED") and e.name not in {f.name for f in found})

    def open(self, path: str, offset: int = 0) -> Any:
        return self.inner.open(path, offset)


def test_a_file_written_before_a_resolved_file_is_never_missed_by_the_listing(hand: Hand):
    """The listing passes the data file's place, then data and RESOLVED file appear, and it shows only the latter."""
    hand.data(0, (1, 0.5))

    def meanwhile() -> None:
        hand.data(0, (2, 0.6))
        hand.resolve(1)

    source = hand.source(store=Watched(LocalStore(str(hand.root)), [meanwhile]))
    assert frontiers(source) == [at(1).next()]
    assert sorted(take(source, target(), 1)) == [1, 2]


def test_a_resolved_file_seen_only_by_the_second_listing_waits_for_the_next_poll(hand: Hand):
    hand.data(0, (1, 0.5))
    hand.resolve(1)
    source = hand.source(store=Watched(LocalStore(str(hand.root)), [lambda: None, lambda: hand.resolve(2)]))
    assert frontiers(source) == [at(1).next()]
    assert frontiers(source) == [at(1).next(), at(2).next()]


def test_a_file_that_vanishes_while_listed_is_passed_over(hand: Hand):
    gone = hand.data(0, (1, 0.5))
    hand.resolve(1)
    source = hand.source(store=Watched(LocalStore(str(hand.root)), [gone.unlink]))
    assert frontiers(source) == [at(1).next()]
    assert source.splits("t", Epoch(ORIGIN, at(1).next()), START) == ()


# ── what the feed may do wrong ─────────────────────────────────────────────────────────────
@pytest.mark.parametrize("minted", [False, True], ids=["not taken yet", "minted past"])
def test_a_resolved_timestamp_that_regresses_above_the_frontier_loses_and_repeats_nothing(hand: Hand, *, minted: bool):
    """An epoch may end at it; one that was minted past it stays what it is."""
    hand.data(0, (1, 0.5), (2, 2.5), (3, 4.5))
    hand.resolve(1)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    take(source, t, 1)
    hand.resolve(5)

    def mint_after(lower: Timestamp) -> list[Epoch]:
        seen = source.observe(t.position, ["t"])
        return list(mint(Minting(every=None), lower, seen.earliest, seen.cuts, open_epochs=0, flush=False))

    whole = [Epoch(t.frontier, at(5).next())]
    assert mint_after(t.frontier) == whole
    hand.resolve(3)
    halves = [Epoch(t.frontier, at(3).next()), Epoch(at(3).next(), at(5).next())]
    assert mint_after(whole[-1].upper if minted else t.frontier) == ([] if minted else halves)
    assert [take(source, t, upper) for upper in ((5,) if minted else (3, 5))] == ([[2, 3]] if minted else [[2], [3]])
    assert mint_after(t.frontier) == []


def test_a_resolved_timestamp_that_regresses_below_the_frontier_is_ignored_while_a_newer_file_is_there(hand: Hand):
    hand.data(0, (1, 0.5))
    hand.resolve(5)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    take(source, t, 5)
    hand.resolve(3)
    assert frontiers(source, t.position) == []
    assert frontiers(hand.source(), t.position) == []


def test_a_feed_whose_newest_resolved_timestamp_is_behind_us_stops_naming_both(hand: Hand):
    hand.data(0, (1, 0.5))
    new = hand.resolve(200_000)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    take(source, t, 200_000)
    new.unlink()
    hand.resolve(3)
    with pytest.raises(Stopped) as stopped:
        hand.source().observe(t.position, ["t"])
    assert str(at(200_000)) in stopped.value.fact
    assert str(at(3)) in stopped.value.fact


def mark(frontier: Timestamp, source: Changefeed) -> Mark:
    return Mark("p", frontier, origin_id("p", "t"), START, source.identity(), Writer("w", 1))


def test_a_target_behind_the_oldest_resolved_file_is_overcompacted(hand: Hand):
    hand.data(0, (1, 0.5))
    first = hand.resolve(1)
    hand.resolve(2)
    t = target()
    take(hand.source(), t, 1)
    source = hand.source()
    check_resume(mark(t.frontier, source), source.identity(), source.observe(t.position, ["t"]).earliest)
    first.unlink()
    source = hand.source()
    with pytest.raises(Overcompacted):
        check_resume(mark(t.frontier, source), source.identity(), source.observe(t.position, ["t"]).earliest)
    check_resume(mark(ORIGIN, source), source.identity(), source.observe(START, ["t"]).earliest)


def test_a_resolved_file_that_claims_less_inside_than_its_name_counts_for_less(hand: Hand):
    hand.data(0, (1, 0.5))
    path = hand.resolve(5)
    path.write_text(json.dumps({"resolved": str(at(4))}))
    with capture_logs() as logs:
        assert frontiers(hand.source()) == [at(4).next()]
    assert logs


def test_a_resolved_file_that_is_not_complete_is_looked_at_again(hand: Hand):
    hand.data(0, (1, 0.5))
    path = hand.resolve(5)
    whole = path.read_text()
    for broken in ("", '{"resolved'):
        path.write_text(broken)
        source = hand.source()
        assert frontiers(source) == []
    path.write_text(whole)
    assert frontiers(source) == [at(5).next()]


def test_foreign_files_are_ignored_with_one_warning(hand: Hand):
    path = hand.data(0, (1, 0.5))
    hand.resolve(1)
    for name in ("mine.ndjson", "yours.ndjson", "_SUCCESS", ".x.ndjson.crc"):
        (path.parent / name).write_text("{}")
    with capture_logs() as logs:
        source = hand.source()
        assert frontiers(source) == [at(1).next()]
        source.observe(START, ["t"])
    assert len(logs) == 1
    assert source.tables(START) == ["t"]


def test_a_changefeed_name_that_is_not_understood_stops(hand: Hand):
    path = hand.data(0, (1, 0.5))
    path.rename(path.with_name(path.name.replace("-1-72-", "-x-")))
    with pytest.raises(Stopped, match="begins like a changefeed file"):
        hand.source().observe(START, ["t"])


def test_a_missing_directory_is_a_matter_of_settings(tmp_path: Path):
    with pytest.raises(ConfigError, match="does not exist"):
        Changefeed(str(tmp_path / "nowhere")).observe(START, [])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file is a file, not a folder"):
        Changefeed(str(tmp_path / "file")).observe(START, [])
    with pytest.raises(ConfigError, match="does not exist"):
        Changefeed(str(tmp_path / "file" / "feed")).observe(START, [])
    with pytest.raises(ConfigError, match="scheme 'gopher'"):
        Changefeed("gopher://user:secret@host/path")


def test_errors_of_the_store_come_in_our_words(hand: Hand, monkeypatch: pytest.MonkeyPatch):
    def refuse(error: OSError) -> Callable[[str], object]:
        def scandir(_: str) -> object:
            raise error

        return scandir

    monkeypatch.setattr("os.scandir", refuse(PermissionError("no")))
    with pytest.raises(ConfigError, match="no permission"):
        hand.source().observe(START, [])
    monkeypatch.setattr("os.scandir", refuse(OSError("input/output error")))
    with pytest.raises(ConnectionFailed, match="input/output error"):
        hand.source().observe(START, [])


def test_a_loop_of_links_in_place_of_a_folder_is_named(hand: Hand):
    path = hand.data(0, (1, 0.5))
    hand.resolve(1)
    loop = hand.root / "2026-04-03"
    loop.symlink_to(loop)
    with pytest.raises(ConnectionFailed, match=r"2026-04-03 cannot be read.*symbolic links"):
        hand.source().observe(START, ["t"])
    loop.unlink()
    (path.parent / "07").symlink_to("07")
    with pytest.raises(ConnectionFailed, match=r"/07 cannot be read.*symbolic links"):
        hand.source().observe(START, ["t"])
    with pytest.raises(ConfigError, match="07 cannot be followed"):
        Changefeed(str(path.parent / "07"))


def test_a_link_that_leads_nowhere_is_named_where_it_stands_for_a_file_or_folder_of_the_feed(hand: Hand):
    path = hand.data(0, (1, 0.5))
    hand.resolve(1)
    (path.parent / ".#lock").symlink_to("nowhere")
    assert frontiers(hand.source()) == [at(1).next()]
    for link in (path.with_name(path.name.replace("00000001-t", "00000002-t")), path.parent / "07", hand.root / "2026-04-03"):
        link.symlink_to("elsewhere/gone")
        with pytest.raises(Overcompacted, match=f"{link.name} is a link to elsewhere/gone, which does not exist"):
            hand.source().observe(START, ["t"])
        link.unlink()
    kept = path.rename(hand.root.parent / "kept")
    path.symlink_to(kept)
    assert take(hand.source(), target(), 1) == [1]


# ── what must still be there ───────────────────────────────────────────────────────────────
def waiting_files(hand: Hand, count: int) -> tuple[Target, list[Path]]:
    """Publish up to a resolved timestamp before the last change of each of some files; then all is resolved."""
    paths = [hand.data(n / (count + 1), (n, 0.9), (1000 + n, 1.5)) for n in range(count)]
    hand.data(0.95, (5000, 0.96))  # all of it is published
    hand.resolve(1)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    take(source, t, 1)
    hand.resolve(2)
    return t, paths


@pytest.mark.parametrize("gone", [(0,), (1,), (2,), (0, 2)])
def test_every_file_that_held_changes_after_the_position_must_still_be_there(hand: Hand, gone: tuple[int, ...]):
    t, paths = waiting_files(hand, 3)
    for n in gone:
        paths[n].unlink()
    with pytest.raises(Overcompacted, match=f"{len(gone)} of 3 files of t .*held changes after {at(1)}") as stopped:
        hand.source().observe(t.position, ["t"])
    assert "restore" in stopped.value.next_step
    with pytest.raises(Overcompacted, match="held changes after"):
        take(hand.source(), t, 2)


def test_only_files_whose_changes_are_all_published_may_be_cleaned_up(hand: Hand):
    t, paths = waiting_files(hand, 3)
    done = set(hand.root.rglob("*-t-1.ndjson")) - set(paths)
    assert len(done) == 1
    done.pop().unlink()
    hand.data(0.5, (1, 0.5), written=1.5)  # the feed repeats itself: more files than there were
    source = hand.source()
    assert source.observe(t.position, ["t"]).cuts
    assert sorted(take(source, t, 2)) == [1000, 1001, 1002]
    assert Place.of(t.position).waiting.count == 0
    for path in paths:
        path.unlink()
    assert hand.source().observe(t.position, ["t"]).cuts == ()


def test_a_file_s_other_folder_does_not_matter(hand: Hand):
    t, paths = waiting_files(hand, 2)
    paths[1].rename(hand.root / paths[1].name)
    assert sorted(take(hand.source(), t, 2)) == [1000, 1001]


def test_a_table_waits_only_for_its_own_files(hand: Hand):
    hand.data(0, (1, 0.5), (2, 1.5))
    other = hand.data(0.1, (1, 0.5), (2, 1.5), table="u")
    hand.resolve(1)
    source, t, u = hand.source(), target(), target("u")
    source.observe(START, ["t", "u"])
    take(source, t, 1)
    take(source, u, 1)
    assert (Place.of(t.position).waiting.count, Place.of(u.position).waiting.count) == (1, 1)
    other.unlink()
    hand.resolve(2)
    source = hand.source()
    with pytest.raises(Overcompacted):
        source.observe(u.position, ["t", "u"])
    source.observe(t.position, ["t", "u"])
    assert take(source, t, 2) == [2]


def test_positions_without_waiting_files_are_read_as_before(hand: Hand):
    t, paths = waiting_files(hand, 2)
    value = t.position.value()
    assert value.pop("waiting")["count"] == 2
    t.position = Position.of(value)
    paths[1].unlink()  # which such a position cannot know
    assert take(hand.source(), t, 2) == [1000]


def test_however_many_files_wait_a_position_stays_small_and_counts_them(hand: Hand):
    t, paths = waiting_files(hand, NAMED + 20)
    assert Place.of(t.position).position() == t.position
    assert len(t.position.text.encode()) < POSITION_LIMIT // 2
    again = target()
    take(hand.source(), again, 1)
    assert again.position == t.position
    hand.source().observe(t.position, ["t"])
    for path in paths[-3:]:  # which are only counted: the published file may stand for one of them
        path.unlink()
    with pytest.raises(Overcompacted, match="2 of 276 files"):
        hand.source().observe(t.position, ["t"])
    for path in paths[:5]:
        path.unlink()
    with pytest.raises(Overcompacted, match="7 of 276 files"):
        hand.source().observe(t.position, ["t"])


def test_a_waiting_file_that_grew_is_still_there(hand: Hand):
    t, (path,) = waiting_files(hand, 1)
    source = hand.source()
    source.observe(t.position, ["t"])
    path.write_text(path.read_text() + line(7, at(2.5)))
    hand.resolve(3)
    epoch = Epoch(t.frontier, at(2).next())
    read(source, "t", epoch, t.position, SCHEMA)
    _, reports = read(source, "t", epoch, t.position, SCHEMA)
    source.reached(epoch, t.position, reports)  # and not published
    assert sorted(take(source, t, 3)) == [7, 1000]


def test_a_file_that_grew_is_read_by_the_next_epoch_also_without_a_listing_between(hand: Hand):
    path = hand.data(0, (1, 0.5))
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    path.write_text(path.read_text() + line(2, at(1.5)))
    hand.resolve(1)
    hand.resolve(2)
    assert len(source.observe(START, ["t"]).cuts) == 2
    assert take(source, t, 1) == [1]
    assert Place.of(t.position).waiting.count == 1
    assert take(source, t, 2) == [2]


def everything(path: Path) -> bool:
    return path.is_file()


def resolved_files(path: Path) -> bool:
    return path.suffix == ".RESOLVED"


@pytest.mark.parametrize("lost", [everything, resolved_files])
def test_a_feed_that_shows_no_resolved_file_is_not_caught_up(hand: Hand, lost: Callable[[Path], bool]):
    hand.data(0, (1, 0.5))
    hand.resolve(1)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    take(source, t, 1)
    source.release(t.position)
    aside = {path: path.read_bytes() for path in hand.root.rglob("*") if lost(path)}
    for path in aside:
        path.unlink()
    for _ in range(2):
        with pytest.raises(ConnectionFailed, match=f"up to {at(1)}, and .* shows no RESOLVED file any more") as away:
            source.observe(t.position, ["t"])
        assert "mounted" in away.value.next_step
    fresh = hand.source()
    with pytest.raises(Overcompacted, match=f"up to {at(1)}, and .* shows no RESOLVED file") as stopped:
        fresh.observe(t.position, ["t"])
    assert "mounted" in stopped.value.next_step
    assert fresh.observe(START, ["t"]).cuts == ()  # whoever has nothing yet waits for the feed to begin
    for path, text in aside.items():
        path.write_bytes(text)
    hand.resolve(2)
    assert frontiers(source, t.position) == frontiers(fresh, t.position) == [at(2).next()]


# ── positions ──────────────────────────────────────────────────────────────────────────────
def test_a_position_says_from_which_name_on_files_still_matter(hand: Hand):
    hand.data(0, (1, 0.5))
    hand.data(0.2, (2, 0.5), (3, 1.5))
    hand.data(0.4, (4, 0.5))
    hand.resolve(1)
    source, t = hand.source(), target()
    assert sorted(take(source, t, 1)) == [1, 2, 4]
    place = Place.of(t.position)
    assert (place.resolved, place.low, place.since) == (at(1), at(0.2), at(1).wall // 1_000_000)
    hand.resolve(2)
    source = hand.source()
    source.observe(t.position, ["t"])
    assert take(source, t, 2) == [3]
    assert Place.of(t.position).low == at(2)


def test_a_file_that_was_read_to_its_end_is_not_read_again(hand: Hand):
    hand.data(0, (1, 0.5))
    hand.data(0.1, (2, 1.5))
    hand.resolve(1)
    hand.resolve(2)
    hand.resolve(3)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    take(source, t, 1)
    assert len(paths(source, Epoch(at(1).next(), at(2).next()), t.position)) == 1
    take(source, t, 2)
    assert paths(source, Epoch(at(2).next(), at(3).next()), START) == []


def test_a_change_at_the_very_frontier_belongs_to_the_next_epoch(hand: Hand):
    frontier = at(1).next()
    path = hand.data(0, (1, 0.5))
    path.write_text(line(1, at(1)) + line(2, frontier))
    hand.resolve(1)
    hand.resolve(2)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    assert take(source, t, 1) == [1]
    assert take(source, t, 2) == [2]


def paths(source: Changefeed, epoch: Epoch, start: Position, table: str = "t") -> list[str]:
    return [part[0] for split in source.splits(table, epoch, start) for part in json.loads(split.work)["parts"]]


def test_an_old_name_with_new_changes_is_found_while_watching(hand: Hand):
    hand.data(0, (1, 0.5))
    hand.resolve(1)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    take(source, t, 1)
    hand.data(0, (1, 0.5), (2, 1.5), written=0.1)  # its time does not even tell that it is new
    hand.resolve(2)
    source.observe(t.position, ["t"])
    assert take(source, t, 2) == [2]


def test_an_old_name_with_new_changes_is_found_after_a_restart_by_its_time(hand: Hand):
    hand.data(0, (1, 0.5))
    hand.resolve(1)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    take(source, t, 1)
    hand.data(0, (1, 0.5), (2, 1.5), written=1.1)
    hand.resolve(2)
    assert take(hand.source(), t, 2) == [2]


def test_after_a_restart_old_files_are_not_read(hand: Hand):
    for n in range(5):
        hand.data(n, (n, n + 0.5))
        hand.resolve(n + 1)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    take(source, t, 4)
    assert len(paths(hand.source(), Epoch(t.frontier, at(5).next()), t.position)) == 1


def test_each_table_has_a_position_of_its_own(hand: Hand):
    hand.data(0, (1, 0.5), (2, 3.5))
    hand.data(0.5, (1, 0.5), table="u")
    hand.resolve(1)
    source, t, u = hand.source(), target(), target("u")
    source.observe(START, ["t", "u"])
    take(source, t, 1)
    take(source, u, 1)
    assert Place.of(t.position).low == at(0)
    assert Place.of(u.position).low == at(1)


def test_releasing_one_table_s_position_keeps_another_table_s_files(hand: Hand):
    """Both are at the same frontier after a restart, but one has changes waiting in a file with an older name."""
    hand.data(0, (7, 0.5), (8, 2.5), table="u")
    hand.resolve(1)
    hand.data(200_000, (1, 200_000))
    hand.resolve(200_001)
    source, t, u = hand.source(), target(), target("u")
    source.observe(START, ["t", "u"])
    take(source, t, 1)
    take(source, u, 1)
    source = hand.source()
    take(source, t, 200_001)
    source.release(t.position)
    source.observe(t.position, ["t", "u"])
    assert take(source, u, 200_001) == [8]


@pytest.mark.parametrize("partition", ["daily", "flat"])
def test_an_old_name_that_turned_up_late_survives_the_release_of_another_table(partition: str, tmp_path: Path):
    """Reading it moves its table's position back, behind where the other table says that names may be forgotten."""
    hand = Hand(tmp_path, partition=partition)
    hand.data(0, (1, 0.5))
    hand.data(0, (1, 0.5), table="u")
    hand.resolve(1)
    source, t, u = hand.source(), target(), target("u")
    source.observe(START, ["t", "u"])
    take(source, t, 1)
    take(source, u, 1)
    hand.resolve(2 * DAY)
    hand.data(1.5 * DAY, (2, 2.5 * DAY), (3, 4.5 * DAY), written=2 * DAY)
    hand.resolve(4 * DAY)
    for day, keys in ((2, []), (4, [2]), (5, [3])):
        hand.resolve(day * DAY)
        source.observe(u.position, ["t", "u"])
        assert take(source, t, day * DAY) == keys
        take(source, u, day * DAY)
        source.release(u.position)


def test_flat_files_that_were_forgotten_are_found_again_by_whoever_is_further_back(tmp_path: Path):
    hand = Hand(tmp_path, partition="flat")
    hand.data(0, (7, 0.5), table="u")
    hand.data(0, (1, 0.5))
    hand.resolve(1)
    hand.resolve(5 * DAY)
    source, t, u = hand.source(), target(), target("u")
    source.observe(START, ["t", "u"])
    take(source, t, 5 * DAY)
    source.release(t.position)
    assert take(source, u, 5 * DAY) == [7]


def test_a_table_without_files_moves_on(hand: Hand):
    hand.resolve(1)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    assert take(source, t, 1) == []
    assert Place.of(t.position) == Place(at(1), at(1), at(1).wall // 1_000_000)


def test_an_epoch_that_was_never_planned_does_not_skip_files(hand: Hand):
    hand.data(0, (1, 0.5))
    hand.resolve(1)
    source = hand.source()
    source.observe(START, ["t"])
    assert Place.of(source.reached(Epoch(ORIGIN, at(1).next()), START, [])).low == ORIGIN


def test_a_file_that_grew_after_it_was_listed_is_looked_at_again(hand: Hand):
    path = hand.data(0, (1, 0.5))
    hand.resolve(1)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    path.write_text(path.read_text() + line(2, at(0.6)))
    assert take(source, t, 1) == [1, 2]
    path.write_text(path.read_text() + line(3, at(1.6)))
    hand.resolve(2)
    source.observe(t.position, ["t"])
    assert take(source, t, 2) == [3]


# ── splits ─────────────────────────────────────────────────────────────────────────────────
def test_small_files_share_a_split_and_large_ones_are_cut(hand: Hand):
    for n in range(10):
        hand.data(n, (n, 10))
    hand.data(10, *((n, 10) for n in range(100)))
    hand.resolve(11)
    epoch = Epoch(ORIGIN, at(11).next())
    source = hand.source(split_bytes=1000)
    splits = source.splits("t", epoch, START)
    assert splits == hand.source(split_bytes=1000).splits("t", epoch, START)
    assert [s.number for s in splits] == list(range(len(splits)))
    assert all(s.bytes <= 1000 for s in splits)
    assert 7 <= len(splits) <= 12
    changes, _ = read(source, "t", epoch, START, SCHEMA)
    assert changes is not None
    assert changes.num_rows == 110
    assert len(hand.source(parallelism=4).splits("t", epoch, START)) == 1  # too little to share


def test_compressed_files_are_counted_larger_and_never_cut(tmp_path: Path):
    hand = Hand(tmp_path, codec="gzip")
    path = hand.data(0, *((n, 0) for n in range(1000)))
    hand.resolve(1)
    (split,) = hand.source(split_bytes=100).splits("t", Epoch(ORIGIN, at(1).next()), START)
    assert split.bytes == 8 * path.stat().st_size


# ── cheap polls, bounded memory ────────────────────────────────────────────────────────────
def test_a_poll_lists_only_the_last_days_and_parses_only_new_names(hand: Hand):
    for day in range(30):
        for n in range(20):
            hand.data(day * DAY + n, (n, day * DAY + n))
        hand.resolve(day * DAY + 1000)
    source, t = hand.source(), target()
    source.observe(START, ["t"])
    take(source, t, 29 * DAY + 1000)
    source.release(t.position)
    work = source.catalogue.work
    folders, parsed = work.folders, work.parsed
    source.observe(t.position, ["t"])
    assert work.folders - folders == 1 + 2  # the root, yesterday, today
    assert work.parsed == parsed
    hand.data(29 * DAY + 1500, (1, 29 * DAY + 1500))
    source.observe(t.position, ["t"])
    assert work.parsed == parsed + 1


def test_a_restart_lists_only_the_days_that_the_position_needs(hand: Hand):
    for day in range(30):
        hand.data(day * DAY, (1, day * DAY))
        hand.resolve(day * DAY + 1000)
    t = target()
    take(hand.source(), t, 28 * DAY + 1000)
    source = hand.source()
    assert len(frontiers(source, t.position)) == 1
    assert source.catalogue.work.folders == (1 + 3) + (1 + 2)  # before and after seeing the newest resolved timestamp
    assert source.catalogue.work.parsed == 2 * 3


def test_asking_for_all_tables_lists_the_past_only_once(hand: Hand):
    for day in range(30):
        hand.data(day * DAY, (1, day * DAY), table="t" if day else "first")
        hand.resolve(day * DAY + 1000)
    source = hand.source()
    assert source.tables(START) == ["first", "t"]
    folders = source.catalogue.work.folders
    assert source.tables(START) == ["first", "t"]
    assert source.catalogue.work.folders - folders == 1 + 2


@dataclass(frozen=True)
class Named:
    """An entry of a listing that stands for a file."""

    name: str
    is_folder: bool = False

    def stat(self) -> Stat:
        return Stat(100, 0)


@dataclass
class Counting:
    """A store of nothing but names by folder, which counts how often it lists and what it shows."""

    folders: dict[str, list[str]]
    listings: int = 0
    shown: int = 0

    def where(self, path: str = "") -> str:
        return f"counting/{path}"

    def top(self) -> Iterator[Entry]:
        return self._show(Named(day, is_folder=True) for day in self.folders)

    def walk(self, folder: str) -> Iterator[Entry]:
        return self._show(map(Named, self.folders[folder]))

    def _show(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        self.listings += 1
        for entry in entries:
            self.shown += 1
            yield entry

    def open(self, path: str, offset: int = 0) -> Any:
        del offset
        return BytesIO(json.dumps({"resolved": str(Timestamp.parse_name(path[11:44]))}).encode())


def test_idle_polls_cost_the_same_however_many_files_there_are():
    """20,000 files, also for somebody who asks for all tables, or has not begun because his table has no file yet."""
    folders: dict[str, list[str]] = {}
    for day in range(20):
        names = [at(day * DAY / 4 + n).name() for n in range(1000)]
        data = [f"{name}-56087568dba1e6b8-1-72-{n:08x}-t{n % 3}-1.ndjson" for n, name in enumerate(names[:-1])]
        folders.setdefault(day_of(at(day * DAY / 4)), []).extend([*data, f"{names[-1]}.RESOLVED"])
    store = Counting(folders)
    assert sum(map(len, folders.values())) == 20_000
    source = Changefeed("", store=store)
    tables = ["t0", "t1", "t2", "waits"]

    def cost(ask: Callable[[], object]) -> tuple[int, int, int]:
        before = store.listings, store.shown, source.catalogue.work.parsed
        ask()
        return store.listings - before[0], store.shown - before[1], source.catalogue.work.parsed - before[2]

    everything = (1 + len(folders), len(folders) + 20_000, 20_000)
    recent = [folders[day] for day in sorted(folders)[-2:]]
    poll = (1 + len(recent), len(folders) + sum(map(len, recent)), 0)
    confirming = (everything[0] + poll[0], everything[1] + poll[1], everything[2])
    assert cost(lambda: source.observe(START, tables)) == confirming
    seen = source.observe(START, tables)
    assert cost(lambda: source.observe(START, tables)) == poll
    assert source.observe(START, tables) is seen  # no file was weighed again
    assert cost(lambda: source.tables(START)) == poll
    done = seen.cuts[-1].frontier.prev()
    source.release(Place(done, done, 0).position())
    assert cost(lambda: source.tables(START)) == poll
    assert source.tables(START) == ["t0", "t1", "t2"]
    assert cost(lambda: source.observe(Place(done, done, 0).position(), tables)) == poll


def test_a_table_that_appears_later_is_named_though_the_past_is_not_listed_again(hand: Hand):
    hand.data(0, (1, 0.5))
    hand.resolve(1)
    hand.resolve(10 * DAY)
    source, t = hand.source(), target()
    assert source.tables(START) == ["t"]
    take(source, t, 10 * DAY)
    source.release(t.position)
    hand.data(10 * DAY + 1, (1, 10 * DAY + 1), table="u")
    assert source.tables(START) == ["t", "u"]


def test_an_observation_changes_with_whatever_is_learned(hand: Hand):
    hand.data(0, (1, 0.5))
    hand.resolve(1)
    source, t = hand.source(), target()
    first = source.observe(START, ["t"])
    hand.data(0.1, (2, 0.5))
    assert source.observe(START, ["t"]).cuts[0].size > first.cuts[0].size
    hand.resolve(2)
    assert len(source.observe(START, ["t"]).cuts) == 2
    assert source.observe(START, ["u"]).cuts[0].size == 0
    source.observe(START, ["t"])
    take(source, t, 1)
    assert [cut.size for cut in source.observe(t.position, ["t"]).cuts] == [0]


def test_memory_does_not_grow_with_a_long_run(hand: Hand):
    source, t = hand.source(), target()
    for n in range(60):
        when = n * DAY / 4
        hand.data(when, (1, when + 1), (2, when + 700))
        hand.data(when, (1, when + 1), table="nobody-reads-this")
        hand.resolve(when + 600)
        source.observe(t.position, ["t"])
        take(source, t, when + 600)
        source.release(t.position)
    catalogue = source.catalogue
    assert sum(1 for _ in catalogue.files("t")) <= 2
    assert sum(1 for _ in catalogue.files("nobody-reads-this")) <= 12
    assert sum(map(len, catalogue._names.values())) <= 40
    assert len(catalogue._seen) == 1
    assert source.tables(START) == ["nobody-reads-this", "t"]


def test_a_release_leaves_the_feed_s_files_alone(hand: Hand):
    hand.data(0, (1, 0.5))
    hand.resolve(1)
    before = sorted(hand.root.rglob("*"))
    source, t = hand.source(), target()
    take(source, t, 1)
    source.release(t.position)
    source.release(START)
    assert sorted(hand.root.rglob("*")) == before


@pytest.mark.parametrize("partition", ["flat", "daily", "hourly"])
def test_all_partition_formats_are_read(partition: str, tmp_path: Path):
    hand = Hand(tmp_path, partition=partition)
    hand.data(0, (1, 0.5))
    hand.data(7200, (2, 7200.5))
    hand.resolve(7201)
    source = hand.source()
    assert frontiers(source) == [at(7201).next()]
    assert sorted(take(source, target(), 7201)) == [1, 2]


# ── the rest ───────────────────────────────────────────────────────────────────────────────
def test_the_identity_is_the_name_or_the_place_without_credentials(tmp_path: Path):
    place = str(tmp_path.resolve())
    assert Changefeed(f"{tmp_path}/./x/..").identity() == Changefeed(f"file://{place}").identity()
    assert json.loads(Changefeed(place).identity().text) == {"changefeed": place}
    assert json.loads(Changefeed(place, name="shop").identity().text) == {"changefeed": "shop"}
    secret = Changefeed("s3://bucket/feed/", storage={"s3.secret-access-key": "hush"})
    assert json.loads(secret.identity().text) == {"changefeed": "s3://bucket/feed"}
    assert "hush" not in repr(secret.store)


def test_a_position_of_another_kind_of_source_stops(hand: Hand):
    odd = Place(at(1), at(1), 0).position().value() | {"waiting": {"count": 2, "names": "abc"}}
    for alien in ({"offsets": {"0": 5}}, {"resolved": 5, "from": 1, "since": 0}, {"resolved": "x", "from": "y", "since": 0}, odd):
        with pytest.raises(Stopped, match="not a position in a changefeed"):
            hand.source().observe(Position.of(alien), ["t"])


def test_locations_that_cannot_be_used_are_named():
    for location in ("s3://", "s3:///prefix", "s3://[bucket/x"):
        with pytest.raises(ConfigError, match="the changefeed's location"):
            Changefeed(location)
    for given in ({"s3.endpoint": "ftp://x"}, {"s3.access-key-id": "x"}, {"s3.connect-timeout": "soon"}):
        with pytest.raises(ConfigError, match="properties cannot be used"):
            Changefeed("s3://bucket/x", storage=given).observe(START, [])


def test_a_file_uri_may_be_quoted(tmp_path: Path):
    (tmp_path / "a b").mkdir()
    assert Changefeed(f"file://{tmp_path}/a%20b").observe(START, []).cuts == ()


def test_sampling_passes_over_what_cannot_be_read_or_is_not_exact(hand: Hand):
    path = hand.data(0, (1, 0.5))
    path.write_text(path.read_text() + "nonsense\n" + line(2, at(0.5)).replace('"x"', "12345678901234567.89"))
    assert hand.source().sample("t") == {"id", "v"}


def test_keys_are_found_in_the_first_rows_unless_named(tmp_path: Path):
    Feed(tmp_path).scan()
    assert Changefeed(str(tmp_path)).keys("orders") == ("id",)
    assert Changefeed(str(tmp_path), keys={"orders": ["customer_id", "id"]}).keys("orders") == ("customer_id", "id")
    assert Changefeed(str(tmp_path)).keys("no-such-table") is None


def test_several_targets_may_read_at_the_same_time(tmp_path: Path):
    feed = Feed(tmp_path, seed=3)
    feed.scan()
    for _ in range(5):
        feed.advance(50)
    source = Changefeed(str(tmp_path))
    source.observe(START, [t.name for t in SHOP])
    targets = [Target(t.name, t.keys, schema_of({"id": "long"})) for t in SHOP for _ in range(3)]
    with ThreadPoolExecutor(4) as threads:
        plans = list(threads.map(lambda t: source.splits(t.table, Epoch(ORIGIN, feed.resolved[-1].next()), START), targets))
    assert plans[0] == plans[1] == plans[2]


def test_the_store_may_be_anything_that_lists_and_opens(hand: Hand):
    store: Store = Watched(LocalStore(str(hand.root)))
    hand.data(0, (1, 0.5), written=SECOND)
    assert hand.source(store=store).tables(START) == ["t"]
