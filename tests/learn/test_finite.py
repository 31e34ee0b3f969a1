import math

import pytest

from embodied.errors import NumericalError
from embodied.learn.step.finite import FiniteUpdates


def test_bad_updates_in_a_row_are_counted_and_a_good_one_forgives():
    finite = FiniteUpdates(limit=2)
    assert not finite.accepts(math.nan, 1.0, version=1)
    assert finite.accepts(0.5, 1.0, version=1)
    assert finite.bad_in_a_row == 0
    assert not finite.accepts(0.5, math.inf, version=2)
    with pytest.raises(NumericalError, match=r"for 2 updates in a row; last finite: loss 0\.5.* version 1"):
        finite.accepts(-math.inf, 1.0, version=2)


def test_the_count_goes_on_after_a_checkpoint():
    first, second = FiniteUpdates(limit=2), FiniteUpdates(limit=2)
    first.accepts(0.25, 1.0, version=3)
    first.accepts(math.nan, 1.0, version=4)
    second.load_state_dict({**first.state_dict(), "weight_version": 3})
    with pytest.raises(NumericalError, match=r"last finite: loss 0\.25"):
        second.accepts(math.nan, 1.0, version=4)
