"""The catalogue: every method is a short composition of the same pieces."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from common.config import Settings, unknown_name
from common.errors import ConfigError
from common.objectives import objective_of
from common.plugins import Table
from common.two_party.label_products import LABEL_PRODUCTS
from server_app import masked_data
from server_app.clustering import algorithms, by_models, placement
from server_app.clustering.algorithms import ScoredClusters
from server_app.clustering.by_models import ModelGroups
from server_app.clustering.placement import Placement
from server_app.dissimilarity import LABEL_METRICS, Dissimilarity, symmetric_kl
from server_app.protection import catalogue, secagg_limits
from server_app.rounds import routing
from server_app.rounds.routing import Routing
from server_app.selection import rules
from server_app.selection.clustered_sampling import ClusteredBySimilarity, ClusteredBySize
from server_app.selection.in_clusters import IN_CLUSTERS
from server_app.selection.informed import Delta, FedCor, PowerOfChoice
from server_app.selection.rules import Selection
from server_app.transport import groups
from server_app.transport.groups import OtGroups

Clusterer = Callable[[np.ndarray, np.ndarray, np.random.Generator], ScoredClusters]
"""(descriptors (n, d), distances (n, n), generator) -> clusters and how each number scored."""


@dataclass(frozen=True)
class LabelGroups:
    """Sites grouped once, before round 1, by how alike their label distributions are."""

    compare: Dissimilarity
    cluster: Clusterer
    place: Placement
    """Where a site that joins late belongs."""
    metric: str
    """Name of ``compare``."""
    normalise: Literal["client", "class"] = "client"
    """How counts become distributions: ``clustering.normalise_counts``."""
    chosen_by: str = "silhouette"
    """What sets the number of clusters when the settings do not."""


@dataclass(frozen=True)
class LabelDistances:
    """Sites grouped before round 1 by label distances that every two of them compute together."""

    cluster: Clusterer
    """It gets the distances alone: the descriptors are (n, 0)."""
    metric: str
    """Of ``common.two_party.label_products.LABEL_PRODUCTS``."""


@dataclass(frozen=True)
class Method:
    """Who trains, how sites are grouped (if they are), and which model each one gets."""

    select: Selection
    group: LabelGroups | LabelDistances | ModelGroups | OtGroups | None = None
    route: Routing = routing.one_model

    @property
    def needs(self) -> frozenset[str]:
        """What the server must see of clients: what groups them and what selects them."""
        seen = {
            LabelGroups: "labels",
            LabelDistances: "label-distances",
            ModelGroups: "models",
        }
        if isinstance(self.group, OtGroups):
            grouping = set(self.group.sees)
        else:
            grouping = {seen[type(self.group)]} if self.group else set()
        if isinstance(self.group, ModelGroups) and self.group.every:
            grouping.add("every-model")
        rehearsals = {"rehearsals"} if self.select.rehearses else set()
        return self.select.needs | grouping | rehearsals


def fedavg(settings: Settings) -> Method:
    """Everybody, one model: McMahan et al. 2017 with all clients; ``selection`` has no say."""
    return Method(select=rules.Everybody())


def random(settings: Settings) -> Method:
    """Clients drawn uniformly: McMahan et al. 2017, and every paper's reference."""
    size = settings.clients_per_round
    return Method(select=rules.Uniform(size) if size else rules.Everybody())


def fedsccs(settings: Settings) -> Method:
    """CKA and Ward in round ``cluster-at-round``, then a model per cluster: Talasso et al."""
    return _model_per_cluster(by_models.by_activations(settings), settings)


def wc(settings: Settings) -> Method:
    """FedSCCS with the cosine of the last layer's weights: Talasso's baseline WC."""
    return _model_per_cluster(by_models.by_weights(settings), settings)


def wc_updates(settings: Settings) -> Method:
    """FedSCCS with the cosine of the updates, as CFL compares: Sattler et al. 2020."""
    return _model_per_cluster(by_models.by_updates(settings), settings)


def kcenter(settings: Settings) -> Method:
    """FedSCCS with greedy k-center on the last layer's weights: Talasso's baseline KCenter."""
    return _model_per_cluster(by_models.by_weights_around_centres(settings), settings)


def random_clusters(settings: Settings) -> Method:
    """FedSCCS with random clusters: Talasso's baseline RC."""
    return _model_per_cluster(by_models.randomly(settings), settings)


def flis(settings: Settings) -> Method:
    """Groups of equal predictions, formed anew every round, one client of each: Morafah et al."""
    method = _model_per_cluster(by_models.by_predictions(settings), settings)
    return method if settings.clients_per_round else replace(method, select=IN_CLUSTERS["random"])


def ot_cost_groups(settings: Settings) -> Method:
    """OT costs after round 1, groups of low cost, a model per group: Elhussein and Gürsoy."""
    return _model_per_cluster(groups.by_cost(settings), settings)


def _model_per_cluster(group: ModelGroups | OtGroups, settings: Settings) -> Method:
    size = settings.clients_per_round
    return Method(
        group=group,
        select=rules.SpreadOverClusters(size) if size else rules.Everybody(),
        route=routing.per_cluster,
    )


def similarity(settings: Settings) -> Method:
    """k-medoids on a label metric, one client per cluster: Famá et al., Algorithm 1.

    With ``clients-per-round`` set, that many clients are spread over the clusters.
    """
    size, compare = settings.clients_per_round, _label_metric(settings)
    return Method(
        group=_label_distances(settings)
        or LabelGroups(
            compare=compare,
            cluster=_k_medoids(settings),
            place=placement.nearest_medoid(compare),
            metric=settings.metric,
        ),
        select=rules.SpreadOverClusters(size) if size else rules.OnePerCluster(),
        route=routing.ROUTINGS[settings.routing],
    )


def simclust(settings: Settings) -> Method:
    """SimClust, k-means on label distributions in symmetrised KL: Pereira et al., section III-A.

    ``clients-per-round`` clients are spread over the clusters; 0: one of each.
    """
    size = settings.clients_per_round
    return Method(
        group=LabelGroups(
            compare=symmetric_kl,
            cluster=_symmetric_kl_k_means(settings),
            place=placement.nearest_centre,
            metric="symmetric-kl",
            normalise=settings.normalise,
        ),
        select=rules.SpreadOverClusters(size) if size else rules.OnePerCluster(),
        route=routing.ROUTINGS[settings.routing],
    )


def repclust(settings: Settings) -> Method:
    """RepClust, groups diverse inside and alike outside: Pereira et al., section III-B.

    Whole groups train. The number of groups, if not set, makes them as large as a round.
    """
    if not (settings.num_clusters or settings.clients_per_round):
        raise ConfigError(
            "num-clusters = 0 and clients-per-round = 0: strategy=repclust makes groups as large "
            "as a round; set clients-per-round, or num-clusters"
        )
    return Method(
        group=LabelGroups(
            compare=symmetric_kl,
            cluster=_repulsive(settings),
            place=placement.most_diverse,
            metric="symmetric-kl",
            normalise=settings.normalise,
            chosen_by="clients-per-round",
        ),
        select=rules.WholeGroups(settings.clients_per_round),
        route=routing.ROUTINGS[settings.routing],
    )


def power_of_choice(settings: Settings) -> Method:
    """Power-of-choice, the largest losses of some candidates: Cho et al. 2022."""
    size, candidates = _cohort_size(settings), settings.power_of_choice_candidates
    if candidates < size:
        raise ConfigError(
            f"power-of-choice-candidates = {candidates}: must be at least "
            f"clients-per-round = {size}, for the cohort is chosen among them"
        )
    return Method(select=PowerOfChoice(size, candidates))


def clustered_sampling_size(settings: Settings) -> Method:
    """Clustered sampling by size: Fraboni et al. 2021, Algorithm 1."""
    return Method(select=ClusteredBySize(_cohort_size(settings)))


def clustered_sampling_similarity(settings: Settings) -> Method:
    """Clustered sampling by the similarity of updates: Fraboni et al. 2021, Algorithm 2."""
    return Method(select=ClusteredBySimilarity(_cohort_size(settings)))


def delta(settings: Settings) -> Method:
    """DELTA, sooner those whose update differs from the mean: Wang et al. 2023."""
    return Method(select=Delta(_cohort_size(settings), full=settings.delta_mode == "full"))


def fedcor(settings: Settings) -> Method:
    """FedCor, a Gaussian process over the loss changes: Tang et al. 2022."""
    return Method(
        select=FedCor(_cohort_size(settings), settings.fedcor_warmup, settings.fedcor_interval)
    )


METHODS: Table[Callable[[Settings], Method]] = Table(
    "strategy",
    "coterie.methods",
    {
        "random": random,
        "similarity": similarity,
        "simclust": simclust,
        "repclust": repclust,
        "power-of-choice": power_of_choice,
        "fedcor": fedcor,
        "clustered-sampling-size": clustered_sampling_size,
        "clustered-sampling-similarity": clustered_sampling_similarity,
        "delta": delta,
        "fedavg": fedavg,
        "fedsccs": fedsccs,
        "wc": wc,
        "wc-updates": wc_updates,
        "kcenter": kcenter,
        "random-clusters": random_clusters,
        "flis": flis,
        "ot-groups": ot_cost_groups,
    },
)


def build(settings: Settings) -> Method:
    """Return the method that the settings name; :class:`ConfigError` if it cannot be had."""
    method = compose(settings)
    catalogue.check(method.needs, settings)
    secagg_limits.check(
        settings, method.select, model_per_cluster=method.route is routing.per_cluster
    )
    return method


def compose(settings: Settings) -> Method:
    """Return the method that the settings name, whatever their protections keep from it."""
    method = METHODS.named(settings.strategy)(settings)
    masked_data.check(settings, method.group)
    if settings.routing == "per-cluster" and method.group is None:
        raise ConfigError(
            f"routing = 'per-cluster': strategy={settings.strategy} groups nobody; "
            "use strategy=similarity, simclust or repclust, or routing=one-model"
        )
    if not objective_of(settings).shares_model and method.needs - {
        "labels",
        "label-distances",
        "sizes",
    }:
        raise ConfigError(
            f"objective = {settings.objective!r}: no model leaves a site, and "
            f"strategy={settings.strategy} needs to see {' and '.join(sorted(method.needs))}; "
            "use strategy=fedavg or random"
        )
    return _selecting(method, settings)


def _selecting(method: Method, settings: Settings) -> Method:
    """Return the method with the setting ``selection`` in place of its own rule."""
    if settings.selection == "auto":
        return method
    if method.group is None:
        raise ConfigError(
            f"selection = {settings.selection!r}: strategy={settings.strategy} groups nobody; "
            "use selection=auto, or a strategy that forms clusters"
        )
    if settings.clients_per_round:
        raise ConfigError(
            f"selection = {settings.selection!r} and clients-per-round = "
            f"{settings.clients_per_round} both say who trains; leave one of them out"
        )
    return replace(method, select=IN_CLUSTERS[settings.selection])


def _label_metric(settings: Settings) -> Dissimilarity:
    if settings.metric not in LABEL_METRICS:
        raise ConfigError(unknown_name("metric", settings.metric, LABEL_METRICS))
    return LABEL_METRICS[settings.metric]


def _label_distances(settings: Settings) -> LabelDistances | None:
    """Return the grouping that sees no histogram, if the settings ask for it."""
    if settings.label_privacy != "two-party":
        return None
    if settings.metric not in LABEL_PRODUCTS:
        raise ConfigError(
            f"metric = {settings.metric!r}: with label-privacy=two-party it must be one of "
            f"{', '.join(LABEL_PRODUCTS)}; take one, or label-privacy=gaussian"
        )
    if settings.recluster_every:
        raise ConfigError(
            f"recluster-every = {settings.recluster_every}: with label-privacy=two-party distances "
            "are computed once per run, for their noise must not average out; set it to 0"
        )
    return LabelDistances(_k_medoids(settings), settings.metric)


def _k_medoids(settings: Settings) -> Clusterer:
    k, most = settings.num_clusters, settings.max_clusters

    def cluster(_: np.ndarray, distances: np.ndarray, rng: np.random.Generator) -> ScoredClusters:
        if k:
            return ScoredClusters(algorithms.k_medoids(distances, k, rng), scores={})
        return algorithms.silhouette_sweep(distances, rng, max_clusters=most)

    return cluster


def _symmetric_kl_k_means(settings: Settings) -> Clusterer:
    k, most = settings.num_clusters, settings.max_clusters

    def cluster(shares: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> ScoredClusters:
        if k:
            return ScoredClusters(algorithms.symmetric_kl_k_means(shares, k, rng), scores={})
        return algorithms.symmetric_kl_k_means_by_silhouette(shares, rng, most)

    return cluster


def _repulsive(settings: Settings) -> Clusterer:
    k, size = settings.num_clusters, settings.clients_per_round

    def cluster(shares: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> ScoredClusters:
        if k:
            clusters = algorithms.repulsive(shares, k, rng)
            return ScoredClusters(clusters, scores={}, score="diversity")
        return algorithms.repulsive_by_size(shares, size, rng)

    return cluster


def _cohort_size(settings: Settings) -> int:
    if not settings.clients_per_round:
        raise ConfigError(
            f"clients-per-round = 0: strategy={settings.strategy} draws a fixed number of clients; "
            "set clients-per-round"
        )
    return settings.clients_per_round
