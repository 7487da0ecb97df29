"""What the tests of the matrix read of a run's log."""

from __future__ import annotations

import json

import pytest

from icefront.proof.harness import released

FIRST, SECOND = (json.dumps({"event": "released", "frontier": f"{wall}.0000000000"}) for wall in (10, 20))


@pytest.mark.parametrize("cut", range(len(SECOND) + 1))
def test_a_line_that_is_not_whole_yet_is_not_read(cut: int) -> None:
    """A run that lives may be in the middle of it; one that was killed has not said it."""
    log = f"starting\n{FIRST}\n"
    assert released(log + SECOND[:cut]) == ["10.0000000000"]
    assert released(f"{log}{SECOND}\n") == ["10.0000000000", "20.0000000000"]
