import numpy as np
import pytest

from common.data.rows import Rows
from common.errors import DataError


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_rows_that_float32_cannot_hold_are_named(value):
    x = np.zeros((5, 2))
    x[3, 1] = value
    with pytest.raises(DataError, match=r"row 3 holds"):
        Rows(x, np.zeros(5, np.int64), ("a",))


@pytest.mark.parametrize(
    ("x", "labels"), [(np.zeros((3, 2)), 2), (np.zeros((0, 2)), 0), (np.zeros((3, 0)), 3)]
)
def test_rows_are_as_many_as_labels_and_not_empty(x, labels):
    with pytest.raises(DataError, match="equally many"):
        Rows(x, np.zeros(labels, np.int64), ("a",))


def test_numbers_without_features_are_no_rows():
    with pytest.raises(DataError, match=r"features of shape \(\): a row must be \(features,\)"):
        Rows(np.zeros(3), np.zeros(3, np.int64), ("a",))
