"""Weighted vectors of Z_2^64: their sum is exact, and what could wrap is refused."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import SecaggError
from common.secagg.fixed_point import Scale

LIKE = {
    "weight": np.zeros((2, 3), np.float32),
    "running": np.zeros(2, np.float64),
    "batches": np.zeros((), np.int64),
}


def model(rng, batches=3):
    return {
        "weight": rng.normal(size=(2, 3)).astype(np.float32),
        "running": rng.normal(size=2) * 100,
        "batches": np.array(batches, np.int64),
    }


@given(st.integers(1, 10_000), st.integers(1, 2**24))
def test_the_bound_is_the_largest_power_of_two_that_cannot_wrap(members, max_weight):
    limit = Scale(members, max_weight).limit
    assert members * max_weight * limit < 2**63 <= members * max_weight * limit * 2
    assert limit & (limit - 1) == 0


def test_extreme_vectors_of_a_full_cohort_add_up_without_wrapping():
    scale = Scale(5, 7)
    for sign in (1, -1):
        values = {"w": np.array([sign * scale.bound]), "n": np.array([sign * scale.limit])}
        total = 5 * scale.encode(values, [], 7)
        mean = scale.decode(total, values, 0, (5, 35))
        assert mean.parameters["w"] == values["w"]
        assert mean.parameters["n"] == values["n"]
        with pytest.raises(SecaggError, match="'w' holds"):
            scale.encode({"w": np.nextafter(values["w"], sign * np.inf) * 2}, [], 7)
        with pytest.raises(SecaggError, match="'n' holds an integer above"):
            scale.encode({"n": values["n"] + sign}, [], 7)


def test_a_sum_is_the_exact_sum_of_what_was_rounded():
    rng = np.random.default_rng(0)
    scale, weights = Scale(6, 900), rng.integers(1, 900, 6)
    models = [model(rng) for _ in weights]
    vectors = [
        scale.encode(m, [0.5], int(weight)) for m, weight in zip(models, weights, strict=True)
    ]
    total = np.sum(vectors, axis=0, dtype=np.uint64).view(np.int64)
    for place in range(6):  # float32 times an integer is exact in float64, so Python agrees
        exact = sum(
            round(Fraction(float(m["weight"].flat[place])) * int(n) * 2**24)
            for m, n in zip(models, weights, strict=True)
        )
        assert total[place] == exact
    assert total[-1] == weights.sum()
    assert total[-2] == sum(round(int(n) * 0.5 * 2**24) for n in weights)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8), st.integers(0, 2**32))
def test_the_mean_is_the_weighted_mean_to_the_fixed_point(weights, seed):
    rng = np.random.default_rng(seed)
    scale = Scale(len(weights), 500)
    models = [model(rng, batches=int(rng.integers(0, 2**30))) for _ in weights]
    losses = rng.normal(size=len(weights))
    total = np.zeros(11, np.uint64)
    for m, loss, weight in zip(models, losses, weights, strict=True):
        total += scale.encode(m, [loss], weight)
    mean = scale.decode(total, LIKE, 1, (1, sum(weights)))
    error = 0.5 * len(weights) / sum(weights) * 2.0**-24
    for name, like in LIKE.items():
        expected = np.average([m[name] for m in models], axis=0, weights=weights)
        got = mean.parameters[name]
        assert isinstance(got, np.ndarray)
        assert (got.dtype, got.shape) == (like.dtype, like.shape)
        if like.dtype.kind == "i":
            assert abs(got - expected) <= 0.5 + 1e-6
        else:
            rounding = np.finfo(like.dtype).eps * np.abs(expected)
            assert (np.abs(got - expected) <= error + rounding + 1e-12).all()
    assert abs(mean.metrics[0] - np.average(losses, weights=weights)) <= error + 1e-12
    assert mean.weight == sum(weights)


@pytest.mark.parametrize(
    ("value", "said"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf"), (1e30, "1e\\+30")]
)
def test_what_is_not_in_range_is_refused_with_its_array(value, said):
    scale, values = Scale(3, 10), model(np.random.default_rng(0))
    values["running"][1] = value
    with pytest.raises(SecaggError, match=f"'running' holds {said}"):
        scale.encode(values, [], 10)
    with pytest.raises(SecaggError, match="'metrics' holds"):
        scale.encode(LIKE, [value], 10)


@pytest.mark.parametrize("smallest", [np.iinfo(np.int64).min, np.iinfo(np.int64).max])
def test_the_extremes_of_integers_are_refused_and_not_wrapped(smallest):
    with pytest.raises(SecaggError, match="integer"):
        Scale(3, 10).encode({"n": np.array([smallest])}, [], 1)
    with pytest.raises(SecaggError, match="integer"):
        Scale(3, 10).encode({"n": np.array([2**64 - 1], np.uint64)}, [], 1)


def test_weights_that_were_not_agreed_and_other_types_are_refused():
    for weight in (0, 11):
        with pytest.raises(SecaggError, match="must be 1 to 10"):
            Scale(3, 10).encode(LIKE, [], weight)
    with pytest.raises(SecaggError, match="only numbers"):
        Scale(3, 10).encode({"b": np.array([True])}, [], 1)


def test_scales_without_room_are_refused():
    assert Scale(3, 2**37).bound == 1.0
    with pytest.raises(SecaggError, match="no room"):
        Scale(3, 2**38)
    with pytest.raises(SecaggError, match="no room"):
        Scale(2**40, 2**40)
    with pytest.raises(SecaggError, match="below 1"):
        Scale(0, 5)


def test_sums_that_no_cohort_can_have_are_refused():
    scale = Scale(3, 10)
    total = 3 * scale.encode(LIKE, [0.25], 10)
    assert scale.decode(total, LIKE, 1, (30, 30)).metrics == [0.25]
    with pytest.raises(SecaggError, match="add up to 30"):
        scale.decode(total, LIKE, 1, (3, 29))
    with pytest.raises(SecaggError, match="expected"):
        scale.decode(total[1:], LIKE, 1, (3, 30))
    with pytest.raises(SecaggError, match="expected"):
        scale.decode(total.view(np.int64), LIKE, 1, (3, 30))
    beyond = 3 * scale.encode(LIKE, [0.25], 1)
    beyond[0] = 2**62
    with pytest.raises(SecaggError, match="larger than its members"):
        scale.decode(beyond, LIKE, 1, (3, 30))


def test_noise_is_never_taken_for_a_sum():
    """What a wrong key or seed leaves behind is uniform, and the weights give it away."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        noise = rng.integers(0, 2**64, 11, dtype=np.uint64)
        with pytest.raises(SecaggError, match="add up to"):
            Scale(30, 1000).decode(noise, LIKE, 1, (30, 30_000))
