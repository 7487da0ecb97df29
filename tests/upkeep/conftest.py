"""What tests of upkeep leave as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_pool_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Upkeep gives the thread that it works in a scheduler pool of its own; here that is the thread of all tests."""
    yield
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").sparkContext.setLocalProperty("spark.scheduler.pool", None)
