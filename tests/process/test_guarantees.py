"""docs/guarantees.md promises tests by name: each of them runs in every test run, and none of the matrix is missing there."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from icefront.proof.failpoints import OF_A_RUN

TESTS = Path(__file__).parent.parent
GUARANTEES = (TESTS.parent / "docs" / "guarantees.md").read_text()
PROMISED = set(re.findall(r"`(test_\w+)`", GUARANTEES))
CONTROLS = {
    "test_every_failpoint_has_its_zombie",
    "test_every_switch_is_thrown_by_a_test_that_every_run_runs",
    "test_a_test_that_only_says_so_throws_no_switch",
    "test_without_sabotage_the_same_faults_are_survived",
    "test_which_requests_the_client_repeats_by_itself",
    "test_a_commit_is_known_in_all_its_repetitions_and_told_from_others",
}
ROWS: Mapping[str, Sequence[str]] = {
    # the process and its parts
    "SIGKILL at each failpoint": ["test_killed_at_each_failpoint_nothing_wrong_is_visible_and_the_next_run_goes_on"],
    "raise at each failpoint": ["test_an_exception_that_nobody_foresaw_ends_the_run_and_the_next_one_goes_on"],
    "driver dies before S2": [
        "test_a_driver_killed_in_the_middle_of_a_job_leaves_orphans_and_a_worker_that_writes_on_beside_its_successor"
    ],
    "after S2, before S3": ["test_a_chain_of_staged_epochs_is_published_in_order_without_writing_again"],
    "after S3 before S5": ["test_a_run_that_is_killed_around_the_commit_of_a_settled_epoch_is_made_up_for"],
    "zombie driver (paused, split brain)": [
        "test_a_writer_that_is_paused_overtaken_and_woken_is_refused",
        "test_a_writer_that_is_paused_before_its_claim_takes_over_and_goes_on_from_what_it_finds",
    ],
    "killed or overtaken with a settled epoch": [
        "test_a_run_that_is_killed_around_the_commit_of_a_settled_epoch_is_made_up_for",
        "test_a_writer_that_is_overtaken_with_the_vectors_of_a_settled_epoch_in_its_hands_is_refused",
    ],
    "several drivers started at once": [
        "test_of_several_drivers_started_at_once_the_last_to_claim_publishes",
        "test_drivers_that_come_one_after_the_other_take_over_while_the_first_still_works",
    ],
    "JVM killed": ["test_the_jvm_is_killed_and_the_run_stops_cleanly"],
    "reader or worker dies, task retried or speculated": [
        "test_a_python_worker_is_killed_and_spark_tries_again",
        "test_a_python_worker_is_killed_and_without_another_attempt_the_run_stops_cleanly",
        "test_a_failed_attempt_is_tried_again_and_only_the_second_is_published",
        "test_a_slow_task_is_speculated_and_only_the_winner_is_published",
    ],
    "executor lost": ["test_an_executor_that_is_lost_is_replaced"],
    # the commit
    "S3 applied, answer lost; 5xx; timeout; request repeated": [
        "test_creation_claim_publish_heartbeat_and_schema_change_happen_once_whatever_the_fault",
        "test_a_partitioning_change_and_a_settled_epoch_happen_once_whatever_the_fault",
        "test_a_publish_that_the_client_repeats_by_itself_happens_once",
        "test_a_look_that_fails_after_a_lost_answer_is_repeated",
    ],
    "S3 applied late": [
        "test_a_publish_applied_after_a_successors_claim_is_refused",
        "test_a_publish_applied_before_a_successors_claim_counts_and_the_successor_goes_on_from_it",
        "test_a_claim_applied_late_takes_nothing_from_the_successor",
    ],
    "embedded catalog locked": [
        "test_a_publish_waits_for_a_database_that_is_locked_for_a_moment",
        "test_a_database_that_stays_locked_is_a_connection_that_failed",
    ],
    "embedded catalog, killed or paused in mid-commit": [
        "test_a_driver_killed_in_mid_commit_leaves_a_table_that_its_successor_goes_on_with",
        "test_a_driver_paused_in_mid_commit_is_waited_for_while_it_holds_the_database_and_overtaken_while_it_waits_for_it",
    ],
    "embedded catalog, applied and the answer lost": ["test_a_lost_answer_does_not_publish_twice"],
    # other programs in the same table
    "foreign rows before the first epoch": [
        "test_rows_that_others_add_to_a_new_table_while_its_first_epoch_is_staged_are_hidden_by_it"
    ],
    "409 / conflicting foreign commit": [
        "test_a_foreign_writer_that_commits_all_the_time_makes_half_of_our_commits_conflict_and_loses_nothing",
        "test_creation_claim_publish_heartbeat_and_schema_change_happen_once_whatever_the_fault",
    ],
    "concurrent compaction, expiry, foreign append/delete": [
        "test_maintenance_by_others_right_before_each_of_our_commits",
        "test_maintenance_by_others_all_the_time",
        "test_staged_files_that_were_removed_as_orphans_are_written_again",
    ],
    "upkeep": ["test_a_settle_that_is_killed_or_paused_leaves_a_right_table"],
    "rollback of the table past the mark, or CREATE OR REPLACE": [
        "test_a_table_that_is_rolled_back_stops_the_run_and_the_next_one_until_it_is_set_forward",
        "test_a_table_that_is_replaced_stops_the_run_and_the_next_one",
    ],
    "table dropped, replaced, auth lost": [
        "test_a_commit_that_is_never_accepted_stays_staged_and_the_next_run_publishes_it",
        "test_a_table_that_is_replaced_stops_the_run_and_the_next_one",
        "test_a_table_that_is_dropped_and_recreated_stops_the_run_and_the_next_one_loads_it_anew",
        "test_a_table_that_is_dropped_stops_the_run_and_the_next_one_loads_it_anew",
    ],
    "schema or partition spec changed by others": [
        "test_columns_that_others_add_to_the_table_do_not_stop_a_running_pipeline",
        "test_scoped_deletes_stop_when_a_second_spec_appears",
        "test_an_epoch_is_written_anew_when_a_column_was_replaced_meanwhile",
    ],
    "mark or state written by a newer Icefront": [
        "test_a_mark_of_a_newer_icefront_stops_the_commit_and_the_next_claim_and_changes_nothing",
        "test_a_note_of_a_newer_icefront_stops_the_run",
        "test_a_file_of_a_newer_icefront_stops_and_is_left_alone",
        "test_an_older_file_is_migrated_and_keeps_its_notes",
    ],
    "one of several targets fails": ["test_a_target_that_fails_stays_and_the_others_go_on"],
    # disk, state, clock
    "storage error, partial upload, full disk": [
        "test_a_full_disk_stops_the_run_and_with_room_again_the_next_one_goes_on",
        "test_a_full_disk_stops_the_publish_and_nothing_else",
    ],
    "state store lost, corrupt, or older copy restored": [
        "test_a_state_store_that_is_lost_damaged_or_old_costs_nothing_but_work"
    ],
    "clock goes back": ["test_clocks_that_are_behind_change_nothing_or_stop_the_run_by_name"],
    # what comes in
    "a file reported twice": [
        "test_a_closed_file_that_a_worker_reports_twice_is_staged_and_published_once",
        "test_a_closed_file_that_is_reported_twice_unlike_stops",
    ],
    "duplicate or out-of-order delivery": [
        "test_updates_deletes_and_repetitions_leave_the_last_state_of_each_key",
        "test_changes_below_are_dropped_and_those_beyond_wait",
    ],
    "a new change below the frontier that is not a duplicate": [
        "test_a_new_change_below_the_frontier_is_counted_and_its_row_found_missing"
    ],
    "resolved timestamp regresses": [
        "test_a_feed_whose_resolved_timestamps_went_back_stops",
        "test_a_resolved_timestamp_that_regresses_above_the_frontier_loses_and_repeats_nothing",
        "test_a_resolved_timestamp_that_regresses_below_the_frontier_is_ignored_while_a_newer_file_is_there",
    ],
    "source retention passed the frontier": [
        "test_a_feed_whose_next_files_were_cleaned_away_stops",
        "test_a_deleted_file_that_still_had_changes_to_come_stops",
    ],
    "topic or table recreated or truncated under the same name": [
        "test_a_feed_that_was_wiped_and_begun_anew_in_the_same_folder_stops",
        "test_a_feed_that_was_emptied_or_unmounted_is_not_caught_up",
    ],
    "one change larger than the memory budget, one huge epoch": [
        "test_a_huge_row_arrives_whole",
        "test_large_epochs_are_exchanged_by_key_between_workers",
    ],
    "poison record": ["test_a_malformed_line_is_named_by_file_and_line"],
    "schema change mid-epoch": ["test_a_schema_that_changes_between_two_files_of_one_epoch"],
}
"""The rows of the protocol's failure matrix that concern the way into Iceberg, in its words, and more that this one has; each with tests
that it cannot be without."""
CHANNEL = ("commits", "late", "pipeline", "sqlite_catalog")
"""What in `rest` is of the matrix; the others are about the proxy itself, and about the words of errors."""


def in_every_run(paths: Iterable[Path]) -> set[str]:
    """Name the tests in these files that `make test` does not leave out."""
    return {name for path in paths for name in _in_every_run(ast.parse(path.read_text()))}


def _in_every_run(module: ast.Module) -> Iterator[str]:
    assigned = (node for node in module.body if isinstance(node, ast.Assign))
    if any(ast.unparse(node.targets[0]) == "pytestmark" and _is_long(node.value) for node in assigned):
        return
    yield from (function.name for function in _tests(module) if not any(map(_leaves_out, function.decorator_list)))


def _tests(module: ast.Module) -> Iterator[ast.FunctionDef]:
    """Find them in the module and in its classes, as pytest does: each definition of a name, also of one that is there again."""
    within: list[ast.Module | ast.ClassDef] = [module, *(node for node in module.body if isinstance(node, ast.ClassDef))]
    return (node for one in within for node in one.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def _leaves_out(decorator: ast.expr) -> bool:
    """Marks of single parameters are inside of `parametrize`: the others are run, if there are any."""
    if not ast.unparse(decorator).startswith("pytest.mark.parametrize"):
        return _is_long(decorator)
    assert isinstance(decorator, ast.Call)
    values = decorator.args[1]
    return isinstance(values, ast.List | ast.Tuple) and bool(values.elts) and all(map(_is_long, values.elts))


def _is_long(expression: ast.AST) -> bool:
    return "pytest.mark.long" in ast.unparse(expression)


def test_every_test_that_is_promised_runs_in_every_test_run() -> None:
    missing = PROMISED - in_every_run(TESTS.rglob("test_*.py"))
    assert missing == set()


def test_every_test_that_is_promised_is_one_and_no_other_has_its_name() -> None:
    """They are promised by name alone: another of that name would be run in the place of one that is gone."""
    found = Counter(test.name for path in TESTS.rglob("test_*.py") for test in _tests(ast.parse(path.read_text())))
    assert {name: found[name] for name in PROMISED if found[name] != 1} == {}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_failure_matrix_is_promised(row: str) -> None:
    assert set(ROWS[row]) - PROMISED == set()


def test_every_test_of_the_matrix_is_promised() -> None:
    channel = [TESTS / "rest" / f"test_{name}.py" for name in CHANNEL]
    others = [TESTS / "process" / "test_sabotage.py", TESTS / "upkeep" / "test_settle_processes.py"]
    matrix = [*(TESTS / "process").glob("test_matrix_*.py"), *others, *channel]
    missing = in_every_run(matrix) - CONTROLS - PROMISED
    assert missing == set()


def test_the_failpoints_are_as_many_as_is_said() -> None:
    assert re.findall(r"each of the (\d+) failpoints", GUARANTEES) == [str(len(OF_A_RUN))]


def test_what_is_marked_long_is_told_from_what_is_not() -> None:
    marked = """
@pytest.mark.long
def test_a(): ...
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.long), 2])
def test_b(): ...
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.long)])
def test_c(): ...
"""
    assert set(_in_every_run(ast.parse(marked))) == {"test_b"}
    assert not set(_in_every_run(ast.parse(f"pytestmark = [pytest.mark.process, pytest.mark.long]{marked}")))
