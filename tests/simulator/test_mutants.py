"""The simulator is only worth something if it catches a protocol that is wrong."""

from __future__ import annotations

import pytest

from icefront.core import protocol
from icefront.testing.mutants import MUTANTS, Mutant, catch
from icefront.testing.rules import REAL, Rules


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_protocol_with_one_thing_wrong_is_caught(mutant: Mutant) -> None:
    caught = catch(mutant, range(mutant.within))
    assert caught is not None, f"{mutant.name} survived {mutant.within} seeds"
    assert caught[1].trace


def test_every_mutant_differs_from_the_real_rules() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
    for mutant in MUTANTS:
        assert mutant.inner or mutant.rules != REAL, mutant.name


def test_the_real_protocol_is_back_once_a_mutant_has_worked() -> None:
    real = protocol.decide
    mutant = next(mutant for mutant in MUTANTS if "decide" in mutant.inner)
    with mutant.at_work() as rules:
        assert protocol.decide is not real
        assert rules == Rules()
    assert protocol.decide is real


def test_the_real_protocol_is_not_caught() -> None:
    assert catch(Mutant("none"), range(50)) is None
