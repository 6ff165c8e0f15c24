"""Templates: what counts as finite, also where its squares are not."""

import numpy as np
import pytest

from common.errors import MessageError
from common.messages import Template, check_arrays

TEMPLATE = Template.of({"w": np.zeros((2, 2), np.float32)})


def test_numbers_whose_squares_overflow_are_finite_all_the_same():
    check_arrays({"w": np.full((2, 2), 1e30, np.float32)}, TEMPLATE)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (-np.inf, "an infinite value")])
def test_one_entry_that_is_not_finite_is_found_beside_large_ones(value, word):
    array = np.full((2, 2), 1e30, np.float32)
    array[1, 0] = value
    with pytest.raises(MessageError, match=f"array 'w' holds {word}"):
        check_arrays({"w": array}, TEMPLATE)


def test_whole_numbers_and_flags_are_finite():
    for values in ([2**60, -1], [True, False]):
        array = np.array(values)
        check_arrays({"n": array}, Template.of({"n": array}))
