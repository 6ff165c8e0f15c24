"""Partitioners of flwr-datasets as splits: what they deal, by seed, and that nothing is lost."""

import sys

import numpy as np
import pytest

from common.data.datasets import load_dataset
from common.errors import ConfigError, DataError
from common.splits import partition

OWN = """
import numpy as np
from flwr_datasets.partitioner import (
    DirichletPartitioner, IidPartitioner, NaturalIdPartitioner, PathologicalPartitioner,
)
from coterie import by_partitioner

two_classes = by_partitioner(
    lambda sites, seed: PathologicalPartitioner(
        sites, "label", 2, "first-deterministic", seed=seed
    )
)
dirichlet = by_partitioner(
    lambda sites, seed: DirichletPartitioner(sites, "label", 0.5, seed=seed)
)
iid = by_partitioner(lambda sites, seed: IidPartitioner(sites))
too_few = by_partitioner(lambda sites, seed: IidPartitioner(sites - 1))

def half(request, rng):
    return [np.arange(10 * site, 10 * site + 5) for site in range(request.num_clients)]

def raises(request, rng):
    raise RuntimeError("no such thing")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    name = "own_splits_of_a_test"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits", seed=0)


def dealt(dataset, split, seed=0, clients=10):
    settings = {"alpha": 0.3, "num_partitions": 1, "min_size": 1}
    return partition(dataset, split=split, num_clients=clients, seed=seed, **settings)


@pytest.mark.parametrize("name", ["two_classes", "dirichlet", "iid"])
def test_every_row_is_dealt_once_and_by_the_seed(own, digits, name):
    sites = dealt(digits, f"{own}:{name}")
    rows = np.concatenate([site.train for site in sites])
    assert np.array_equal(np.sort(rows), np.arange(len(digits.train_strata)))
    again = dealt(digits, f"{own}:{name}")
    assert all(np.array_equal(a.train, b.train) for a, b in zip(sites, again, strict=True))
    if name == "two_classes":
        assert all(len(np.unique(digits.train_strata[site.train])) == 2 for site in sites)
    if name != "iid":
        other = dealt(digits, f"{own}:{name}", seed=1)
        assert any(len(a.train) != len(b.train) for a, b in zip(sites, other, strict=True))


def test_a_split_that_loses_rows_or_raises_is_named(own, digits):
    with pytest.raises(DataError, match=r"half' deals 50 rows to 10 sites; it must deal each"):
        dealt(digits, f"{own}:half")
    with pytest.raises(DataError, match="too_few' deals 1438 rows to 9 sites"):
        dealt(digits, f"{own}:too_few")
    with pytest.raises(ConfigError, match=r"raises.*no such thing"):
        dealt(digits, f"{own}:raises")


def test_a_missing_package_is_named(own, digits, monkeypatch):
    monkeypatch.setattr("common.splits.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'coterie\[hugging-face\]'"):
        dealt(digits, f"{own}:iid")
