"""Measures: quantities, their classes and their unit, held against NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import DataError
from common.tables.measure import Measure, fifths, measure_of

LIMITS = st.lists(st.integers(-1000, 1000), min_size=2, max_size=9, unique=True).map(sorted)


@given(LIMITS, st.lists(st.floats(-2000, 2000), min_size=1, max_size=30))
def test_classes_lie_between_limits_and_units_can_be_undone(limits, values):
    measure, quantities = Measure(tuple(map(float, limits))), np.array(values)
    classes = measure.classes(quantities)
    edges = np.array([-np.inf, *limits, np.inf])
    assert (edges[classes] < quantities).all()
    assert (quantities <= edges[classes + 1]).all()
    assert len(measure.class_names) == len(set(measure.class_names)) == len(limits) + 1
    again = measure.quantities(measure.scaled(quantities))
    np.testing.assert_allclose(again, quantities, atol=1e-3)
    np.testing.assert_allclose(measure.scaled(np.array([limits[0], limits[-1]], float)), [-1, 1])


@pytest.mark.parametrize("limits", [(), (1.0,), (1.0, 1.0), (2.0, 1.0), (0.0, float("inf"))])
def test_limits_that_leave_no_unit_are_refused(limits):
    with pytest.raises(DataError, match="two finite numbers or more that ascend"):
        Measure(limits)


def test_fifths_cut_quantities_into_five_alike_and_repeats_leave_fewer():
    quantities = np.random.default_rng(0).normal(50, 9, 1000)
    counts = np.bincount(measure_of(quantities, "it").classes(quantities))
    assert counts.tolist() == [200] * 5
    assert fifths([0.0] * 7 + [1.5, 2.5, 3.5]) == (0.0, 1.7)
    with pytest.raises(DataError, match="it: too many rows hold one value"):
        measure_of(np.array([1.0] * 9 + [2.0]), "it")
