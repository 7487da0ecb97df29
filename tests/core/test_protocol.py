"""The publish protocol: decisions as tables, conversations with scripted answers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import pytest

from icefront.core.epochs import Epoch, epoch_id, origin_id
from icefront.core.errors import CommitUncertain, FencedOut, FrontierGap, NotOurs, Overcompacted, RolledBack, SourceChanged
from icefront.core.files import ClosedFile, FileKind, Staged
from icefront.core.marks import START, Identity, Mark, Position, Writer
from icefront.core.protocol import (
    MOVES,
    AlreadyPublished,
    Ancestor,
    Answer,
    Claim,
    Fenced,
    FencedOff,
    Head,
    Landed,
    Load,
    NotLanded,
    Publication,
    Publish,
    Published,
    Refusal,
    Request,
    Send,
    check_fresh,
    check_lineage,
    check_resume,
    claiming,
    decide,
    fence,
    find_published,
    publishing,
    recoverable,
    release_point,
    renewal,
)
from icefront.core.timestamps import ORIGIN, Timestamp

T = TypeVar("T")
SOURCE = Identity.of({"feed": "x"})
ME, OTHER = Writer("me", 2), Writer("other", 1)


def at(wall: int) -> Timestamp:
    return Timestamp(wall)


def mark(frontier: int, lower: int = 0, writer: Writer = ME) -> Mark:
    """The mark after an epoch [lower, frontier); at 0, before the first."""
    return Mark("shop", at(frontier), named(lower, frontier), Position.of({"at": frontier}), SOURCE, writer)


def named(lower: int, upper: int) -> UUID:
    return epoch_id("shop", "orders", Epoch(at(lower), at(upper)))


def staged(lower: int, upper: int, *, settings: str = "s1", fresh: bool = False) -> Staged:
    file = ClosedFile(FileKind.DATA, "orders", str(named(lower, upper)), 0, "a", f"{lower}-{upper}", 1, 1, 0, 0)
    position = Position.of({"at": upper})
    return Staged("shop", "orders", Epoch(at(lower), at(upper)), named(lower, upper), position, (file,), 0, settings, fresh)


def ancestor(lower: int, upper: int, writer: Writer = ME, snapshot: int = 1) -> Ancestor:
    return Ancestor(snapshot, "shop", named(lower, upper), at(upper), writer, adds_files=True)


FOREIGN = Ancestor(99, adds_files=True)


# ── decide ─────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (mark(5, 0), Publish()),
        (mark(9, 5), AlreadyPublished()),
        (mark(5, 0, OTHER), Fenced(OTHER)),
        (mark(9, 5, OTHER), Fenced(OTHER)),
        (mark(7, 5, OTHER), Fenced(OTHER)),
        (mark(5, 0, Writer("me", 1)), Fenced(Writer("me", 1))),
    ],
)
def test_what_the_mark_says_decides(found: Mark, expected: object) -> None:
    assert decide(found, Epoch(at(5), at(9)), named(5, 9), onto=mark(5, 0)) == expected


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (mark(4, 0), "a gap would be skipped"),
        (mark(6, 0), "an overlap would be repeated"),
        (mark(12, 5), "it is long past"),
        (mark(5, 3), "the same frontier, reached by another epoch"),
        (mark(9, 4), "the same upper end, from elsewhere"),
    ],
)
def test_an_epoch_that_does_not_start_at_the_frontier_stops(found: Mark, why: str) -> None:
    with pytest.raises(FrontierGap):
        decide(found, Epoch(at(5), at(9)), named(5, 9), onto=mark(5, 0))


# ── lineage ────────────────────────────────────────────────────────────────────────────────
CLAIM_SNAPSHOT = Ancestor(3, "shop", named(5, 9), at(9), OTHER)


@pytest.mark.parametrize(
    "head",
    [
        Head(mark(9, 5), (ancestor(5, 9), ancestor(0, 5))),
        Head(mark(9, 5), (FOREIGN, ancestor(5, 9))),
        Head(mark(9, 5), (CLAIM_SNAPSHOT, ancestor(5, 9))),
        Head(mark(9, 5), (CLAIM_SNAPSHOT,), whole=False),
        Head(mark(9, 5), (replace(ancestor(1, 2), pipeline="another"), ancestor(5, 9))),
        Head(mark(9, 5), (FOREIGN,), whole=False),
        Head(mark(9, 5), (), whole=False),
        Head(mark(9, 5), (FOREIGN,), whole=False, elsewhere=frozenset({named(0, 5)})),
    ],
    ids=[
        "newest",
        "under foreign",
        "under a claim",
        "claim only",
        "another pipeline's",
        "expired",
        "all expired",
        "older elsewhere",
    ],
)
def test_a_branch_that_holds_the_marks_epoch_passes(head: Head) -> None:
    check_lineage(head, mark(9, 5))


@pytest.mark.parametrize(
    "head",
    [
        Head(mark(9, 5), (ancestor(0, 5),)),
        Head(mark(9, 5), (FOREIGN, ancestor(0, 5)), whole=False),
        Head(mark(9, 5), (FOREIGN,)),
        Head(mark(9, 5), ()),
        Head(mark(9, 5), (FOREIGN,), whole=False, elsewhere=frozenset({named(5, 9)})),
        Head(mark(9, 5), (ancestor(0, 5), ancestor(5, 9))),
    ],
    ids=["rolled back", "rolled back, cut", "replaced", "replaced, empty", "cut, but elsewhere", "an older frontier comes first"],
)
def test_a_branch_without_the_marks_epoch_stops(head: Head) -> None:
    with pytest.raises(RolledBack):
        check_lineage(head, mark(9, 5))


# ── the fence ──────────────────────────────────────────────────────────────────────────────
def publication(lower: int = 5, upper: int = 9, *, fresh: bool = False) -> Publication:
    return Publication(staged(lower, upper, fresh=fresh), mark(lower, 0))


def test_the_fence_returns_the_mark_to_write() -> None:
    head = Head(mark(5, 0), (ancestor(0, 5),))
    assert fence(head, publication()) == mark(9, 5)


@pytest.mark.parametrize(
    "found", [None, mark(9, 5), mark(5, 0, OTHER)], ids=["no mark", "published already", "claimed by another"]
)
def test_the_fence_raises_and_never_merely_says_no(found: Mark | None) -> None:
    with pytest.raises(Refusal):
        fence(Head(found, (ancestor(0, 5),)), publication())


def test_the_fence_stops_on_a_rolled_back_branch() -> None:
    with pytest.raises(RolledBack):
        fence(Head(mark(5, 0), (FOREIGN,)), publication())


FIRST_CLAIM = Ancestor(1, "shop", origin_id("shop", "orders"), ORIGIN, ME)


def first(*, fresh: bool) -> Publication:
    return Publication(staged(0, 5, fresh=fresh), mark(0))


def test_an_epoch_without_deletes_may_be_the_first() -> None:
    assert fence(Head(mark(0), (FIRST_CLAIM,)), first(fresh=True)) == mark(5, 0)


@pytest.mark.parametrize("head", [Head(mark(0), (FOREIGN, FIRST_CLAIM)), Head(mark(0), (FIRST_CLAIM,), whole=False)])
def test_an_epoch_without_deletes_stops_where_rows_may_be(head: Head) -> None:
    with pytest.raises(FrontierGap, match="without deletes"):
        fence(head, first(fresh=True))
    with pytest.raises(FrontierGap, match="without deletes"):
        check_fresh(head)
    assert fence(head, first(fresh=False)) == mark(5, 0)


def claim(seen: Mark | None, *, adopt: bool = False) -> Claim:
    return Claim("shop", "orders", ME, SOURCE, seen, adopt)


def test_a_first_claim_writes_the_origin() -> None:
    written = fence(Head(None), claim(None))
    assert written == Mark("shop", ORIGIN, origin_id("shop", "orders"), START, SOURCE, ME)


def test_a_claim_for_another_source_is_refused_in_the_commit_itself() -> None:
    seen = mark(5, 0, OTHER)
    stranger = replace(claim(seen), source=Identity.of({"feed": "y"}))
    with pytest.raises(SourceChanged, match="feed"):
        fence(Head(seen, (ancestor(0, 5, OTHER),)), stranger)


def test_a_later_claim_changes_the_writer_only() -> None:
    seen = mark(5, 0, OTHER)
    assert fence(Head(seen, (ancestor(0, 5, OTHER),)), claim(seen)) == mark(5, 0, ME)


@pytest.mark.parametrize("found", [None, mark(9, 5, OTHER), mark(5, 0, Writer("third", 2))])
def test_a_claim_over_a_mark_that_moved_is_refused(found: Mark | None) -> None:
    with pytest.raises(Refusal):
        fence(Head(found, (ancestor(0, 5, OTHER),)), claim(mark(5, 0, OTHER)))


def test_a_claim_on_a_rolled_back_table_stops() -> None:
    seen = mark(9, 5, OTHER)
    with pytest.raises(RolledBack):
        fence(Head(seen, (ancestor(0, 5),)), claim(seen))


def test_a_table_that_lost_our_mark_stops() -> None:
    with pytest.raises(RolledBack, match="mark is gone"):
        fence(Head(None, (ancestor(0, 5),)), claim(None, adopt=True))


@pytest.mark.parametrize("head", [Head(None, (FOREIGN,)), Head(None, (Ancestor(1),), whole=False)])
def test_a_table_with_rows_of_others_is_ours_only_if_adopted(head: Head) -> None:
    with pytest.raises(NotOurs):
        fence(head, claim(None))
    assert fence(head, claim(None, adopt=True)).frontier == ORIGIN


def test_a_table_with_empty_snapshots_of_others_is_free() -> None:
    assert fence(Head(None, (Ancestor(1),)), claim(None)).frontier == ORIGIN


# ── conversations ──────────────────────────────────────────────────────────────────────────
def hold(talk: Generator[Request, Answer, T], answers: Sequence[Answer]) -> tuple[list[Request], T]:
    """Hold a conversation whose answers are known; return what was asked, and its end."""
    asked = [next(talk)]
    for answer in answers:
        try:
            asked.append(talk.send(answer))
        except StopIteration as end:
            return asked, end.value
    raise AssertionError(f"still asking: {asked[-1]}")


def claims(retries: int = 2) -> Generator[Request, Answer, Mark]:
    return claiming("shop", "orders", "me", SOURCE, adopt=False, retries=retries)


OWNED = mark(5, 0, OTHER)
SHOWN = Head(OWNED, (ancestor(0, 5, OTHER),))
MINE = Head(mark(5, 0), (replace(CLAIM_SNAPSHOT, epoch_id=named(0, 5), writer=ME), ancestor(0, 5, OTHER)))
LOST = NotLanded("the answer was lost")


def test_a_claim_looks_then_sends_one_generation_further() -> None:
    asked, end = hold(claims(), [SHOWN, Landed(7)])
    assert asked == [Load(), Send(Claim("shop", "orders", Writer("me", 2), SOURCE, OWNED))]
    assert end == mark(5, 0, Writer("me", 2))


def test_a_claim_whose_answer_is_lost_finds_itself() -> None:
    asked, end = hold(claims(), [SHOWN, LOST, MINE])
    assert [type(request) for request in asked] == [Load, Send, Load]
    assert end == MINE.mark


def test_a_claim_that_failed_is_sent_again() -> None:
    asked, _ = hold(claims(), [SHOWN, LOST, SHOWN, Landed(7)])
    assert asked[1] == asked[3]


def test_a_claim_that_came_second_claims_over_the_first() -> None:
    third = mark(5, 0, Writer("third", 2))
    moved = Head(third, (replace(CLAIM_SNAPSHOT, epoch_id=named(0, 5)),))
    asked, end = hold(claims(), [SHOWN, NotLanded("the mark moved"), moved, Landed(8)])
    assert asked[3] == Send(Claim("shop", "orders", Writer("me", 3), SOURCE, third))
    assert end.writer == Writer("me", 3)


def test_an_owner_that_keeps_publishing_does_not_keep_a_claim_out() -> None:
    publishes_on = [Head(mark(n, n - 1, OTHER), (ancestor(n - 1, n, OTHER),)) for n in range(5, 25)]
    answers: list[Answer] = [answer for head in publishes_on for answer in (head, NotLanded("the mark moved"))]
    _, end = hold(claims(retries=1), [*answers, publishes_on[-1], Landed(30)])
    assert end == mark(24, 23, Writer("me", 2))


def test_a_mark_that_never_rests_ends_a_claim() -> None:
    moving = [Head(mark(n, n - 1, OTHER), (ancestor(n - 1, n, OTHER),)) for n in range(5, 5 + MOVES + 3)]
    with pytest.raises(CommitUncertain, match=f"{MOVES + 2} attempts; the last said: the mark moved"):
        hold(claims(retries=1), [answer for head in moving for answer in (head, NotLanded("the mark moved"))])


def test_claims_are_bounded_and_the_last_look_still_counts() -> None:
    answers: list[Answer] = [SHOWN, LOST, SHOWN, LOST]
    _, end = hold(claims(retries=1), [*answers, MINE])
    assert end == MINE.mark
    with pytest.raises(CommitUncertain, match="2 attempts; the last said: the answer was lost"):
        hold(claims(retries=1), [*answers, SHOWN])


def test_a_certain_refusal_is_not_even_sent() -> None:
    with pytest.raises(NotOurs):
        hold(claims(), [Head(None, (FOREIGN,))])
    with pytest.raises(RolledBack):
        hold(claims(), [Head(mark(9, 5, OTHER), (ancestor(0, 5),))])


BEFORE = Head(mark(5, 0), (ancestor(0, 5),))
AFTER = Head(mark(9, 5), (ancestor(5, 9, snapshot=8), ancestor(0, 5)))


def publishes(retries: int = 2) -> Generator[Request, Answer, Published | FencedOff]:
    return publishing(publication(), retries=retries)


def test_a_confirmed_publication_is_done() -> None:
    asked, end = hold(publishes(), [Landed(8)])
    assert asked == [Send(publication())]
    assert end == Published(8, mark(9, 5), 1)


def test_a_publication_whose_answer_was_lost_is_looked_for_and_not_sent_again() -> None:
    asked, end = hold(publishes(), [LOST, AFTER])
    assert asked == [Send(publication()), Load()]
    assert end == Published(8, mark(9, 5), 1)


def test_what_did_not_land_is_sent_again_with_the_same_files() -> None:
    asked, end = hold(publishes(), [LOST, BEFORE, Landed(8)])
    assert asked == [Send(publication()), Load(), Send(publication())]
    assert end == Published(8, mark(9, 5), 2)


def test_our_publication_under_a_successors_claim_is_still_ours() -> None:
    head = Head(mark(9, 5, Writer("third", 3)), (CLAIM_SNAPSHOT, ancestor(5, 9, snapshot=8), ancestor(0, 5)))
    assert hold(publishes(), [LOST, head])[1] == Published(8, mark(9, 5), 1)


def test_the_same_epoch_by_another_writer_is_not_ours() -> None:
    head = Head(mark(9, 5, OTHER), (ancestor(5, 9, OTHER), ancestor(0, 5)))
    assert hold(publishes(), [LOST, head])[1] == FencedOff(OTHER)


def test_a_writer_whose_target_was_claimed_is_fenced_off() -> None:
    head = Head(mark(5, 0, OTHER), (ancestor(0, 5),))
    assert hold(publishes(), [LOST, head])[1] == FencedOff(OTHER)


def test_a_publication_that_expired_at_once_is_known_by_its_mark() -> None:
    head = Head(mark(9, 5), (FOREIGN,), whole=False)
    assert hold(publishes(), [LOST, head])[1] == Published(0, mark(9, 5), 1)


@pytest.mark.parametrize(
    "head",
    [
        Head(mark(9, 5), (ancestor(0, 5),), elsewhere=frozenset({named(5, 9)})),
        Head(mark(5, 0), (FOREIGN,)),
        Head(None, (FOREIGN,)),
    ],
    ids=["ours rolled back", "its base rolled back", "mark gone"],
)
def test_a_publication_to_a_branch_that_lost_it_stops(head: Head) -> None:
    with pytest.raises(RolledBack):
        hold(publishes(), [LOST, head])


def test_a_mark_changed_by_hand_stops() -> None:
    with pytest.raises(FrontierGap):
        hold(publishes(), [LOST, Head(mark(6, 0), (ancestor(0, 6),))])


def test_publications_are_bounded() -> None:
    with pytest.raises(CommitUncertain, match="3 attempts; the last said: the answer was lost"):
        hold(publishes(retries=2), [LOST, BEFORE] * 3)


def test_a_conversation_wants_a_head_when_it_asks_for_one() -> None:
    with pytest.raises(TypeError, match="expected a Head"):
        hold(publishes(), [LOST, Landed(1)])


def test_an_epoch_without_deletes_is_not_sent_again_once_rows_exist() -> None:
    with pytest.raises(FrontierGap, match="without deletes"):
        hold(publishing(first(fresh=True), retries=2), [LOST, Head(mark(0), (FOREIGN, FIRST_CLAIM))])


def test_only_ancestors_of_our_writer_are_found() -> None:
    ancestors = (ancestor(5, 9, OTHER, 1), ancestor(0, 5, ME, 2))
    assert find_published(ancestors, named(5, 9), ME) is None
    assert find_published(ancestors, named(0, 5), ME) == ancestors[1]


def test_a_claim_that_repeats_an_epoch_s_id_is_not_its_publication() -> None:
    ancestors = (replace(ancestor(0, 5, ME, 2), adds_files=False, claims=True), ancestor(0, 5, ME, 1))
    assert find_published(ancestors, named(0, 5), ME) == ancestors[1]
    assert find_published(ancestors[:1], named(0, 5), ME) is None


# ── changes of schema and partitioning ─────────────────────────────────────────────────────
def test_a_change_by_the_owner_leaves_the_mark_as_it_is() -> None:
    head = Head(mark(5, 0), (ancestor(0, 5, ME),))
    assert fence(head, renewal(head, "shop", "orders", ME)) == head.mark


@pytest.mark.parametrize("moved", [mark(5, 0, OTHER), mark(9, 5)], ids=["another claimed it", "our own publish came between"])
def test_a_change_is_refused_once_the_mark_has_moved(moved: Mark) -> None:
    change = renewal(Head(mark(5, 0), (ancestor(0, 5, ME),)), "shop", "orders", ME)
    with pytest.raises(Refusal, match="the mark moved"):
        fence(Head(moved, (ancestor(5, 9), ancestor(0, 5))), change)


def test_a_change_of_a_table_that_was_rolled_back_stops() -> None:
    head = Head(mark(9, 5), (ancestor(0, 5, ME),))
    with pytest.raises(RolledBack):
        fence(head, renewal(head, "shop", "orders", ME))


def test_only_the_owner_of_a_mark_makes_changes() -> None:
    with pytest.raises(FencedOut, match="is owned by writer"):
        renewal(SHOWN, "shop", "orders", ME)
    with pytest.raises(RolledBack, match="vanished"):
        renewal(Head(None), "shop", "orders", ME)


# ── resuming ───────────────────────────────────────────────────────────────────────────────
def test_another_source_stops() -> None:
    with pytest.raises(SourceChanged):
        check_resume(mark(5), Identity.of({"feed": "y"}), ORIGIN)


def test_a_source_that_begins_after_the_frontier_stops() -> None:
    check_resume(mark(5), SOURCE, at(5))
    with pytest.raises(Overcompacted, match=r"5\.0000000000.*6\.0000000000"):
        check_resume(mark(5), SOURCE, at(6))


def test_a_target_that_has_seen_nothing_starts_wherever_the_source_does() -> None:
    check_resume(mark(0), SOURCE, at(6))


def test_staged_epochs_are_recovered_as_far_as_they_form_a_chain() -> None:
    notes = [staged(12, 20), staged(9, 12), staged(0, 5), staged(5, 9), staged(21, 30)]
    assert recoverable(mark(5), notes, "s1") == (notes[3], notes[1], notes[0])


def test_a_gap_ends_the_chain() -> None:
    assert recoverable(mark(5), [staged(6, 9), staged(9, 12)], "s1") == ()


def test_notes_of_other_settings_are_dropped_and_break_the_chain() -> None:
    notes = [staged(5, 9), staged(9, 12, settings="s2"), staged(12, 15)]
    assert recoverable(mark(5), notes, "s1") == (notes[0],)


def test_an_empty_note_does_not_go_round_in_circles() -> None:
    assert recoverable(mark(5), [staged(5, 5)], "s1") == ()


def test_the_source_is_released_at_the_least_frontier() -> None:
    marks = [mark(9), mark(5), mark(7)]
    assert release_point((m.frontier, m.position) for m in marks) == (mark(5).frontier, mark(5).position)
