"""The order of tests that run file by file: files that take longest begin first, so that no worker is left alone with one at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
LONGEST = (
    # quick
    "simulator/test_seeds.py",
    # processes
    "process/test_prove.py",
    "process/test_matrix_zombies.py",
    "process/test_matrix_kills.py",
    "process/test_sabotage.py",
    "cli/test_processes.py",
    "process/test_matrix_storage.py",
    "process/test_matrix_drivers.py",
    "process/test_matrix_settled.py",
    "process/test_matrix_workers.py",
    "process/test_matrix_cluster.py",
    "upkeep/test_settle_processes.py",
    "process/test_matrix_input.py",
    "upkeep/test_commands.py",
    "process/test_cluster.py",
    # with a session
    "process/test_matrix_company.py",
    "rest/test_commits.py",
    "upkeep/test_compact.py",
    "upkeep/test_expire.py",
    "changes/test_changes.py",
    "replica/test_replica.py",
    "changes/test_edges.py",
    "changes/test_random_tables.py",
    "changes/test_public_cases.py",
    "replica/test_kills.py",
    "upkeep/test_many_epochs.py",
    "upkeep/test_settle.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
