"""Outcomes: paired differences, balanced or not, with errors that an oracle confirms."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

from common.pilot.outcomes import Outcomes, measured
from common.pilot.shrinkage import Z


def made(n=400, seed=0, shares=(0.8, 0.7), share_of_1=0.3):
    """Hits of candidates that are right with these shares, in good part on the same rows."""
    rng = np.random.default_rng(seed)
    ease = rng.random((n, 1))
    own = rng.random((n, len(shares)))
    hits = (0.8 * ease + 0.2 * own < np.asarray(shares)).astype(float)
    return hits, (rng.random(n) < share_of_1).astype(np.int64)


def found(hits, labels, balanced=False, groups=None, seed=0):
    return measured(hits, labels, np.random.default_rng(seed), balanced=balanced, groups=groups)


def test_the_values_are_the_metrics():
    hits, labels = made()
    assert found(hits, labels).values == pytest.approx(hits.mean(axis=0))
    said = np.where(hits[:, 0] == 1, labels, 1 - labels)
    told = found(hits, labels, balanced=True).values[0]
    assert told == pytest.approx(balanced_accuracy_score(labels, said))


def test_the_error_is_the_one_of_paired_means():
    hits, labels = made()
    difference = found(hits, labels).difference(0, 1)
    paired = hits[:, 0] - hits[:, 1]
    assert difference.change == pytest.approx(100 * paired.mean())
    # plus the pseudo-unit on each side
    expected = 100 * np.sqrt(paired.var() / 401 + 1 / 401**2)
    assert difference.error == pytest.approx(expected, rel=0.08)
    # and not the one of two samples, which forgets that the rows are the same
    unpaired = 100 * np.sqrt((hits.var(axis=0) / 400).sum())
    assert difference.error < 0.9 * unpaired


def test_rows_that_belong_together_count_as_one():
    hits, labels = made(n=50)
    groups = np.repeat(np.arange(50), 8)
    many = found(np.repeat(hits, 8, axis=0), np.repeat(labels, 8), groups=groups)
    once = found(hits, labels)
    assert many.difference(0, 1).error == pytest.approx(once.difference(0, 1).error)
    apart = found(np.repeat(hits, 8, axis=0), np.repeat(labels, 8))
    assert apart.difference(0, 1).error < 0.5 * once.difference(0, 1).error


def test_agreement_on_few_rows_is_not_certain():
    same = np.ones((9, 2))
    for balanced in (False, True):
        few = found(same, np.zeros(9, np.int64), balanced=balanced).difference(0, 1)
        assert (few.change, few.error) == (0, pytest.approx(10))
    both = found(same, np.arange(9) % 2, balanced=True).difference(0, 1)
    assert both.error == pytest.approx(100 * np.sqrt(1 / 36 + 1 / 25) / 2)


def test_a_rare_class_makes_its_balanced_figure_unsure():
    hits, labels = made(n=400, share_of_1=0.05)
    accuracy, balanced = (found(hits, labels, balanced=way).difference(0, 1) for way in (False, 1))
    assert balanced.error > 2 * accuracy.error


@pytest.mark.parametrize("n", [13, 40, 150])
@pytest.mark.parametrize("balanced", [False, True])
def test_nine_in_ten_intervals_hold_the_true_difference(n, balanced):
    shares, covered = (0.75, 0.5), []
    big, _ = made(n=200_000, seed=99, shares=shares)
    truth = 100 * (big[:, 0] - big[:, 1]).mean()  # classes are alike, so balanced or not
    for seed in range(1000, 1200):
        hits, labels = made(n=n, seed=seed, shares=shares)
        of = found(hits, labels, balanced=balanced).difference(0, 1)
        covered.append(abs(of.change - truth) <= Z * of.error)
    assert 0.84 <= np.mean(covered) <= 0.97


def test_more_candidates_do_not_change_a_pair():
    hits, labels = made(shares=(0.8, 0.7, 0.6))
    one = found(hits, labels).difference(2, 0)
    other = found(hits[:, ::2], labels).difference(1, 0)
    assert (one.change, one.error) == pytest.approx((other.change, other.error))


def test_outcomes_without_a_floor_are_refused():
    with pytest.raises(AssertionError):
        Outcomes(np.zeros(2), np.zeros((2, 2)), 0.0)
