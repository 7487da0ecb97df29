"""Epochs and the rule by which they are minted."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefront.core.epochs import Cut, Epoch, Minting, epoch_id, mint, origin_id
from icefront.core.timestamps import ORIGIN, Timestamp


def at(wall: int) -> Timestamp:
    return Timestamp(wall)


def epochs(*bounds: int) -> list[Epoch]:
    return [Epoch(at(lower), at(upper)) for lower, upper in itertools.pairwise(bounds)]


def minted(
    minting: Minting, cuts: list[Cut], *, lower: int = 0, earliest: int = 0, open_epochs: int = 0, flush: bool = False
) -> list[Epoch]:
    return list(mint(minting, at(lower), at(earliest), cuts, open_epochs=open_epochs, flush=flush))


def test_an_epoch_holds_its_lower_end_and_not_its_upper() -> None:
    epoch = Epoch(at(3), at(5))
    assert at(3) in epoch
    assert at(5).prev() in epoch
    assert at(5) not in epoch
    assert at(3).prev() not in epoch


def test_an_epoch_cannot_end_before_it_begins() -> None:
    with pytest.raises(ValueError, match="ends before it begins"):
        Epoch(at(5), at(3))


def test_the_same_bounds_always_give_the_same_id() -> None:
    assert epoch_id("p", "t", Epoch(at(3), at(5))) == epoch_id("p", "t", Epoch(at(3), at(5)))
    assert str(epoch_id("p", "t", Epoch(at(3), at(5)))) == "a563bb44-80c4-50aa-8074-55a9bc71bab3"


def test_another_pipeline_target_or_bound_gives_another_id() -> None:
    ids = {
        epoch_id("p", "t", Epoch(at(3), at(5))),
        epoch_id("q", "t", Epoch(at(3), at(5))),
        epoch_id("p", "u", Epoch(at(3), at(5))),
        epoch_id("p", "t", Epoch(at(2), at(5))),
        epoch_id("p", "t", Epoch(at(3), at(6))),
        origin_id("p", "t"),
    }
    assert len(ids) == 6


def test_without_every_each_cut_ends_an_epoch() -> None:
    assert minted(Minting(every=None), [Cut(at(2)), Cut(at(5)), Cut(at(9))]) == epochs(0, 2, 5, 9)


def test_with_every_cuts_join_until_it_has_passed() -> None:
    minting = Minting(every=10, heartbeat=10)
    assert minted(minting, [Cut(at(22), 1), Cut(at(25), 1)], lower=20) == []
    assert minted(minting, [Cut(at(22), 1), Cut(at(30), 1)], lower=20) == epochs(20, 30)


def test_no_more_epochs_than_the_window_has_room_for() -> None:
    cuts = [Cut(at(n)) for n in range(1, 9)]
    assert minted(Minting(every=None, in_flight=3), cuts) == epochs(0, 1, 2, 3)
    assert minted(Minting(every=None, in_flight=3), cuts, lower=3, open_epochs=2) == epochs(3, 4)
    assert minted(Minting(every=None, in_flight=3), cuts, lower=3, open_epochs=3) == []
    assert minted(Minting(every=None, in_flight=3), cuts, lower=3, open_epochs=4, flush=True) == []


def test_flush_ends_an_epoch_at_the_last_cut() -> None:
    minting = Minting(every=100, heartbeat=1000)
    assert minted(minting, [Cut(at(22), 1), Cut(at(25), 1)], lower=20) == []
    assert minted(minting, [Cut(at(22), 1), Cut(at(25), 1)], lower=20, flush=True) == epochs(20, 25)


def test_flush_without_a_new_cut_mints_nothing() -> None:
    assert minted(Minting(), [], flush=True) == []
    assert minted(Minting(), [Cut(at(5))], lower=5, flush=True) == []


def test_a_full_epoch_ends_before_the_cut_that_would_overfill_it() -> None:
    cuts = [Cut(at(2), 40), Cut(at(4), 40), Cut(at(6), 40), Cut(at(8), 10)]
    assert minted(Minting(every=1000, max_changes=100, heartbeat=1000), cuts) == epochs(0, 4)
    assert minted(Minting(every=1000, max_changes=100, heartbeat=1000), cuts, flush=True) == epochs(0, 4, 8)


def test_one_cut_is_never_split_however_large() -> None:
    assert minted(Minting(every=None, max_changes=10), [Cut(at(5), 1000)]) == epochs(0, 5)


def test_quiet_stretches_wait_for_the_heartbeat() -> None:
    minting = Minting(every=10, heartbeat=50)
    assert minted(minting, [Cut(at(130))], lower=100) == []
    assert minted(minting, [Cut(at(130)), Cut(at(150))], lower=100) == epochs(100, 150)
    assert minted(minting, [Cut(at(130), 1)], lower=100) == epochs(100, 130)


def test_a_heartbeat_shorter_than_every_still_waits_for_every() -> None:
    assert minted(Minting(every=50, heartbeat=10), [Cut(at(130))], lower=100) == []


def test_an_epoch_ends_where_the_schema_changes() -> None:
    cuts = [Cut(at(2), 1), Cut(at(4), 1, schema_changes_after=True), Cut(at(6), 1)]
    assert minted(Minting(every=1000, heartbeat=1000), cuts) == epochs(0, 4)
    assert minted(Minting(every=1000, heartbeat=1000), cuts, flush=True) == epochs(0, 4, 6)


def test_a_full_epoch_and_a_schema_change_at_once_stay_within_the_window() -> None:
    cuts = [Cut(at(2), 60), Cut(at(4), 60, schema_changes_after=True), Cut(at(6), 1)]
    assert minted(Minting(every=1000, max_changes=100, in_flight=1), cuts) == epochs(0, 2)
    assert minted(Minting(every=1000, max_changes=100, in_flight=2), cuts) == epochs(0, 2, 4)


def test_nothing_is_minted_before_the_source_is_past_lower_and_earliest() -> None:
    cuts = [Cut(at(2)), Cut(at(5)), Cut(at(8))]
    assert minted(Minting(every=None), cuts, lower=5) == epochs(5, 8)
    assert minted(Minting(every=None), cuts, earliest=5) == epochs(0, 8)
    assert minted(Minting(every=None), cuts, earliest=8) == []


def test_a_resolved_timestamp_that_comes_again_ends_no_second_epoch() -> None:
    assert minted(Minting(every=None), [Cut(at(5)), Cut(at(5)), Cut(at(8))]) == epochs(0, 5, 8)


def test_a_resolved_timestamp_that_regresses_is_ignored() -> None:
    assert minted(Minting(every=None), [Cut(at(5)), Cut(at(3)), Cut(at(8))]) == epochs(0, 5, 8)


def test_the_first_cut_after_the_origin_is_due_at_once() -> None:
    """The origin is 1970: any stretch from there is long."""
    now = 1_700_000_000_000_000_000
    assert minted(Minting(), [Cut(at(now))]) == [Epoch(ORIGIN, at(now))]


@pytest.mark.parametrize("wrong", [{"in_flight": 0}, {"max_changes": 0}])
def test_a_window_or_size_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Minting(**wrong)


cut_lists = st.lists(
    st.builds(Cut, st.builds(Timestamp, st.integers(0, 60), st.integers(0, 2)), st.integers(0, 8), st.booleans()), max_size=15
)
mintings = st.builds(
    Minting,
    every=st.one_of(st.none(), st.integers(1, 30)),
    max_changes=st.integers(1, 30),
    in_flight=st.integers(1, 4),
    heartbeat=st.integers(1, 60),
)


@given(
    minting=mintings,
    cuts=cut_lists,
    lower=st.integers(0, 30),
    earliest=st.integers(0, 30),
    open_epochs=st.integers(0, 5),
    flush=st.booleans(),
    in_order=st.booleans(),
)
def test_minted_epochs_are_a_chain_that_ends_on_cuts(
    minting: Minting, cuts: list[Cut], lower: int, earliest: int, open_epochs: int, *, flush: bool, in_order: bool
) -> None:
    given = sorted(cuts, key=lambda cut: cut.frontier) if in_order else cuts
    chain = minted(minting, given, lower=lower, earliest=earliest, open_epochs=open_epochs, flush=flush)
    reached = at(lower)
    for epoch in chain:
        assert epoch.lower == reached
        assert epoch.upper > epoch.lower
        assert epoch.upper > at(earliest)
        assert epoch.upper in {cut.frontier for cut in cuts}
        reached = epoch.upper
    assert len(chain) <= max(minting.in_flight - open_epochs, 0)


@given(mintings, cut_lists, st.integers(0, 30))
def test_no_epoch_reaches_over_a_schema_change(minting: Minting, cuts: list[Cut], lower: int) -> None:
    given = sorted({cut.frontier: cut for cut in cuts}.values(), key=lambda cut: cut.frontier)
    for epoch in minted(minting, given, lower=lower, flush=True):
        assert not any(cut.schema_changes_after and epoch.lower < cut.frontier < epoch.upper for cut in given)


@given(mintings, cut_lists)
def test_minting_again_and_again_reaches_the_last_cut(minting: Minting, cuts: list[Cut]) -> None:
    given = sorted({cut.frontier: cut for cut in cuts}.values(), key=lambda cut: cut.frontier)
    lower = ORIGIN
    for _ in range(len(given) + 1):
        for epoch in mint(minting, lower, ORIGIN, given, open_epochs=0, flush=True):
            lower = epoch.upper
    assert lower == max((cut.frontier for cut in given), default=ORIGIN)
