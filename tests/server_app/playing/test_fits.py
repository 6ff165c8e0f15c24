"""Fits from sums: what a site sends for a step is sums of that step, or is refused."""

import numpy as np
import pytest

from common.errors import MessageError
from common.exact.contract import LARGEST
from common.messages.row_sums import SUMS
from server_app.playing.fits import checked_sums

TAKEN = np.array([0, LARGEST - 1, 1 - LARGEST])


def test_sums_of_a_step_are_taken_as_they_are():
    assert checked_sums({SUMS: TAKEN}, 3) is TAKEN


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({}, "holds no sums"),
        ({"more": TAKEN}, "holds no sums"),
        ({SUMS: TAKEN, "more": TAKEN}, "holds no sums"),
        ({SUMS: TAKEN.astype(np.float64)}, "holds no sums"),
        ({SUMS: TAKEN.astype(np.uint64)}, "holds no sums"),
        ({SUMS: TAKEN[:2]}, r"sums \(2,\) of a step of 3"),
        ({SUMS: np.zeros(4, np.int64)}, r"sums \(4,\) of a step of 3"),
        ({SUMS: TAKEN[:, None]}, r"sums \(3, 1\) of a step of 3"),
        ({SUMS: np.array([0, 0, LARGEST])}, r"beyond 2\^53"),
        ({SUMS: np.array([0, 0, -LARGEST])}, r"beyond 2\^53"),
        ({SUMS: np.array([0, 0, np.iinfo(np.int64).min])}, r"beyond 2\^53"),
    ],
)
def test_what_is_none_is_refused(arrays, why):
    with pytest.raises(MessageError, match=why):
        checked_sums(arrays, 3)
