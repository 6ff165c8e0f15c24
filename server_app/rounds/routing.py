"""Routing: the model that each client gets, and the average of its clients' updates."""

from collections.abc import Callable, Sequence

import numpy as np

from common.messages import Parameters
from server_app.clustering.algorithms import Clusters

Routing = Callable[[Clusters], np.ndarray]
"""Clusters of n clients -> the model index of each, (n,) ints 0..m-1 without gaps."""


def one_model(clusters: Clusters) -> np.ndarray:
    """Return model 0 for everybody; clusters then only decide who trains."""
    return np.zeros(len(clusters.labels), dtype=np.int64)


def per_cluster(clusters: Clusters) -> np.ndarray:
    """Return a model of its own for every cluster (FedSCCS, Algorithm 1)."""
    return clusters.labels


ROUTINGS: dict[str, Routing] = {"one-model": one_model, "per-cluster": per_cluster}


def average(models: Sequence[Parameters], weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weighted mean of models: sum_i w_i model_i / sum_i w_i, over who took part.

    Adds in float64 and in the order given, so that the result does not depend on threads. Integer
    buffers (batch counters) are averaged and rounded, keeping their type.

    Args:
        models: with equal names, shapes and types.
        weights: (len(models),), positive.
    """
    assert len(models) == len(weights) > 0
    shares = weights / weights.sum(dtype=np.float64)
    return {name: _mean([model[name] for model in models], shares) for name in models[0]}


def _mean(values: Sequence[np.ndarray], shares: np.ndarray) -> np.ndarray:
    total = np.zeros(values[0].shape, dtype=np.float64)
    for value, share in zip(values, shares, strict=True):
        total += share * value
    dtype = values[0].dtype
    # rint makes a number of an array without axes
    return np.asarray(np.rint(total) if dtype.kind in "iu" else total, dtype)


def mixed(before: Parameters, after: Parameters, beta: float) -> dict[str, np.ndarray]:
    """Return (1 - beta) before + beta after; above 1 it goes beyond ``after``.

    The server's step of pFedMe: Dinh et al. 2020, Algorithm 1. At beta = 1 it is ``after``.
    """
    return {name: _mean([before[name], after[name]], np.array([1 - beta, beta])) for name in after}
