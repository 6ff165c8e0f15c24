"""What the privacy audit can tell: noise that is too small is found out, and enough is not."""

import math

import numpy as np
import pytest

from benchmarks.privacy_audit import DELTA, audited, found
from common.privacy.labels import RandomisedLabels


def test_half_of_the_noise_is_found_out():
    rng = np.random.default_rng(0)
    counts = np.array([1, 0]), np.array([0, 1])
    told = []
    for own in counts:
        answers = RandomisedLabels(2.0, 2)  # claimed as 1
        drawn = [answers.release(own, rng.bytes) for _ in range(2000)]
        told.append(np.array(drawn)[:, 1])
    assert 1.3 < found(*told) <= 2.0 + 1e-9
    assert found(told[0], told[0]) == 0


SEEDED = [*audited(np.random.default_rng(1).bytes)]


@pytest.mark.parametrize("each", SEEDED, ids=lambda each: each.words)
def test_no_mechanism_tells_more_than_it_claims(each):
    least = found(each.draws(0, 300), each.draws(1, 300))
    assert math.isfinite(each.claimed)
    assert least <= each.claimed
    assert DELTA == 1e-5
