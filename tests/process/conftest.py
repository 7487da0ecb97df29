"""The order of these tests: files that take longest begin first, so that no worker is left alone with one at the end."""

from __future__ import annotations

import pytest

LONGEST = (
    "test_prove.py",
    "test_matrix_zombies.py",
    "test_matrix_kills.py",
    "test_sabotage.py",
    "test_matrix_storage.py",
    "test_matrix_cluster.py",
    "test_matrix_workers.py",
    "test_matrix_drivers.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
