"""The unbounded baselines: worked numbers, shifts and scales."""

import numpy as np
import pytest

from common.errors import DataError
from server_app.transport.wasserstein import joint_wasserstein, per_class_wasserstein

BASELINES = [joint_wasserstein, per_class_wasserstein]


def client(seed, classes=(0, 1, 2), rows=25, d=4):
    rng = np.random.default_rng(seed)
    y = np.repeat(classes, rows)
    return 5 * np.eye(d)[y % d] + rng.normal(size=(len(y), d)), y


@pytest.mark.parametrize("cost", BASELINES)
def test_equal_rows_cost_nothing_in_any_order(cost):
    h, y = client(0)
    order = np.random.default_rng(1).permutation(len(y))
    assert cost(h, y, h[order], y[order]) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("cost", BASELINES)
def test_a_shift_costs_its_length_twice(cost):
    # Every row, and every class's Gaussian, moves by 3: feature cost 3 and label cost 3. The
    # classes lie further apart than that, so rows stay in their class.
    h, y = client(2)
    shift = np.array([0.0, 0.0, 0.0, 3.0])
    assert cost(h, y, h + shift, y) == pytest.approx(6, abs=1e-5)


@pytest.mark.parametrize("cost", BASELINES)
def test_costs_have_the_scale_of_the_representations_and_no_bound(cost):
    (h_a, y_a), (h_b, y_b) = client(3), client(4)
    once = cost(h_a, y_a, h_b, y_b)
    assert once > 0.1
    assert cost(100 * h_a, y_a, 100 * h_b, y_b) == pytest.approx(100 * once, rel=1e-6)
    assert cost(h_b, y_b, h_a, y_a) == pytest.approx(once, rel=1e-6)


def test_only_the_joint_plan_compares_different_classes():
    # The same two clouds, but the second client calls them by each other's name.
    h, y = client(5, classes=(0, 1))
    swapped = 1 - y
    per_class = per_class_wasserstein(h, y, h, swapped)
    assert joint_wasserstein(h, y, h, swapped) == pytest.approx(0, abs=1e-5)
    assert per_class > 10
    h_other, y_other = client(6, classes=(7,))
    assert per_class_wasserstein(h, y, h_other, y_other) is None
    assert joint_wasserstein(h, y, h_other, y_other) > 5


def test_classes_count_by_their_mean_share():
    h, y = client(7, classes=(0, 1), rows=20)
    wide, names = np.vstack([h, h[y == 1]]), np.concatenate([y, y[y == 1]])
    # Class 0 moves by 1 (cost 2), class 1 stays: weights (20/40 + 20/60)/2 and the rest.
    moved = wide + np.where(names[:, None] == 0, 1.0, 0.0) * np.array([1.0, 0, 0, 0])
    weight = (20 / 40 + 20 / 60) / 2
    label_cost_of_copies = per_class_wasserstein(
        h[y == 1], y[y == 1], wide[names == 1], names[names == 1]
    )
    expected = weight * 2 + (1 - weight) * label_cost_of_copies
    assert per_class_wasserstein(h, y, moved, names) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("cost", BASELINES)
def test_small_classes_are_left_out_and_nothing_left_is_none(cost):
    h, y = client(8, classes=(0, 1), rows=25)
    stray = np.full((5, 4), 1e3)
    h_more, y_more = (
        np.vstack([h, stray]),
        np.append(y, [1, 1, 1, 1, 1]) * 0 + np.append(y, [9] * 5),
    )
    assert cost(h, y, h_more, y_more) == pytest.approx(0, abs=1e-5)
    assert cost(h, y, h, y, min_rows=26) is None
    assert cost(h[:0], y[:0], h, y) is None


@pytest.mark.parametrize("cost", BASELINES)
def test_a_subsample_is_near_and_repeatable(cost):
    (h_a, y_a), (h_b, y_b) = client(9, rows=120), client(10, rows=130)
    few = cost(h_a, y_a, h_b + 2, y_b, max_rows=60)
    assert few == cost(h_a, y_a, h_b + 2, y_b, max_rows=60)
    assert few != cost(h_a, y_a, h_b + 2, y_b, max_rows=60, subsample_seed=1)
    assert few == pytest.approx(cost(h_a, y_a, h_b + 2, y_b), rel=0.2)


@pytest.mark.parametrize("cost", BASELINES)
def test_what_cannot_be_compared_is_refused(cost):
    h, y = client(0)
    with pytest.raises(DataError, match="4 and 3 columns"):
        cost(h, y, h[:, :3], y)
    with pytest.raises(DataError, match="min-rows=1"):
        cost(h, y, h, y, min_rows=1)
