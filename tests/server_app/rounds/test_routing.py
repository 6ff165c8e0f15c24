import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_app.averaging import average
from server_app.clustering.algorithms import Clusters
from server_app.rounds.routing import ROUTINGS


def test_average_by_hand():
    models = [
        {"w": np.array([1.0, 2.0], np.float32), "steps": np.array(3)},
        {"w": np.array([4.0, 8.0], np.float32), "steps": np.array(4)},
    ]
    result = average(models, np.array([1, 2]))
    assert result["w"].tolist() == [3.0, 6.0]
    assert result["steps"] == 4  # (3 + 2 * 4) / 3 = 3.67, rounded, still an integer
    assert (result["w"].dtype, result["steps"].dtype) == (np.float32, np.int64)
    assert isinstance(result["steps"], np.ndarray)  # a checkpoint keeps arrays alone


@given(st.integers(1, 8), st.integers(0, 2**32 - 1), st.floats(0.01, 100))
def test_average_is_numpys_depends_on_ratios_only_and_stays_within(n, seed, factor):
    rng = np.random.default_rng(seed)
    values, weights = rng.normal(size=(n, 5)), rng.uniform(0.1, 9, n)
    models = [{"w": value} for value in values]
    result = average(models, weights)["w"]
    np.testing.assert_allclose(result, np.average(values, axis=0, weights=weights), atol=1e-12)
    np.testing.assert_allclose(result, average(models, weights * factor)["w"], atol=1e-12)
    assert (result <= values.max(0) + 1e-12).all()
    assert (result >= values.min(0) - 1e-12).all()


@pytest.mark.parametrize("name", ROUTINGS)
def test_routes_are_model_indices_without_gaps(name):
    routes = ROUTINGS[name](Clusters(np.array([0, 1, 2, 1])))
    assert sorted(set(routes.tolist())) == list(range(routes.max() + 1))


def test_routes_by_hand():
    clusters = Clusters(np.array([0, 1, 2, 1]))
    assert ROUTINGS["one-model"](clusters).tolist() == [0, 0, 0, 0]
    assert ROUTINGS["per-cluster"](clusters).tolist() == [0, 1, 2, 1]
