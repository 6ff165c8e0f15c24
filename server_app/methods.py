"""The catalogue: every method is a short composition of the same pieces."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from common.config import Settings, unknown_name
from common.errors import ConfigError
from server_app import clustering, routing, selection
from server_app.clustering import Grouping
from server_app.dissimilarity import LABEL_METRICS, Dissimilarity
from server_app.routing import Routing
from server_app.selection import Selection

Clusterer = Callable[[np.ndarray, np.ndarray, np.random.Generator], Grouping]
"""(descriptors (n, d), distances (n, n), generator) -> clusters and how each number scored."""


@dataclass(frozen=True)
class LabelGroups:
    """Sites grouped once, before round 1, by how alike their label distributions are."""

    compare: Dissimilarity
    cluster: Clusterer


@dataclass(frozen=True)
class Method:
    """Who trains, how sites are grouped (if they are), and which model each one gets."""

    select: Selection
    group: LabelGroups | None = None
    route: Routing = routing.one_model


def random(settings: Settings) -> Method:
    """Clients drawn uniformly: McMahan et al. 2017, and every paper's reference."""
    size = settings.clients_per_round
    return Method(select=selection.Uniform(size) if size else selection.Everybody())


def similarity(settings: Settings) -> Method:
    """k-medoids on a label metric, one client per cluster: Famá et al., Algorithm 1.

    With ``clients-per-round`` set, that many clients are spread over the clusters.
    """
    size = settings.clients_per_round
    return Method(
        group=LabelGroups(compare=_label_metric(settings), cluster=_k_medoids(settings)),
        select=selection.SpreadOverClusters(size) if size else selection.OnePerCluster(),
        route=routing.ROUTINGS[settings.routing],
    )


METHODS: Mapping[str, Callable[[Settings], Method]] = {
    "random": random,
    "similarity": similarity,
}


def build(settings: Settings) -> Method:
    """Return the method that the settings name; :class:`ConfigError` if there is none."""
    if settings.strategy not in METHODS:
        raise ConfigError(unknown_name("strategy", settings.strategy, METHODS))
    method = METHODS[settings.strategy](settings)
    if settings.routing == "per-cluster" and method.group is None:
        raise ConfigError(
            f"routing = 'per-cluster': strategy={settings.strategy} groups nobody; "
            "use strategy=similarity or routing=one-model"
        )
    return method


def _label_metric(settings: Settings) -> Dissimilarity:
    if settings.metric not in LABEL_METRICS:
        raise ConfigError(unknown_name("metric", settings.metric, LABEL_METRICS))
    return LABEL_METRICS[settings.metric]


def _k_medoids(settings: Settings) -> Clusterer:
    k, most = settings.num_clusters, settings.max_clusters

    def cluster(_: np.ndarray, distances: np.ndarray, rng: np.random.Generator) -> Grouping:
        if k:
            return Grouping(clustering.k_medoids(distances, k, rng), scores={})
        return clustering.silhouette_sweep(distances, rng, max_clusters=most)

    return cluster
