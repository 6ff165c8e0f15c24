"""Groups by label distributions, formed before round 1.

Sources, named in the lines that implement them:

- Famá: "Measuring Data Similarity for Efficient Federated Learning: A Feasibility Study"
  (Famá, Kalalas, Lagen, Dini), Algorithm 1.
- Pereira: "Energy-Efficient Federated Learning for AIoT using Clustering Methods"
  (Pereira, Famá, Kalalas, Dini), section III.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from common.config import Settings
from common.errors import ClusteringError, ConfigError
from common.foreign.code import contained
from common.plugins import PieceSettings
from common.two_party.label_products import LABEL_PRODUCTS
from server_app.clustering import algorithms, placement
from server_app.clustering.clusters import Clusterer, Clusters, ScoredClusters, check_distances
from server_app.clustering.grouping import STRATEGIES, Description, Grouping
from server_app.clustering.placement import Placement
from server_app.dissimilarity import LABEL_METRICS, Dissimilarity, FloatArray, symmetric_kl

__all__ = [
    "LabelCounts",
    "LabelDistances",
    "LabelGroups",
    "LabelInnerProducts",
    "NormaliseSettings",
    "by_distances",
    "by_distances_of_pairs",
    "by_k_means",
    "by_repulsion",
]


class NormaliseSettings(PieceSettings):
    """How SimClust and RepClust make distributions of counts."""

    normalise: Literal["client", "class"] = Field(
        "client", description="simclust, repclust: label counts per site, or first per class"
    )


@dataclass(frozen=True)
class LabelCounts(Description):
    """The label histogram of every site, for a selection that looks at them."""

    needs: ClassVar[frozenset[str]] = frozenset({"labels"})
    needs_classes: ClassVar[str] = "label distributions"
    played_by: ClassVar[str] = f"{STRATEGIES}.label_histograms:LabelHistograms"


@dataclass(frozen=True)
class LabelInnerProducts(Description):
    """Inner products of label histograms, which every two sites compute together."""

    needs: ClassVar[frozenset[str]] = frozenset({"label-products"})
    needs_classes: ClassVar[str] = "label distributions"
    played_by: ClassVar[str] = f"{STRATEGIES}.label_products:LabelProducts"


@dataclass(frozen=True)
class LabelGroups(Grouping):
    """Sites grouped before round 1, and again if asked, by how alike their labels are dealt."""

    needs: ClassVar[frozenset[str]] = frozenset({"labels"})
    needs_classes: ClassVar[str] = "label distributions"
    played_by: ClassVar[str] = f"{STRATEGIES}.label_distribution:LabelDistributionClustering"
    compare: Dissimilarity
    cluster: Clusterer
    place: Placement
    """Where a site that joins late belongs."""
    metric: str
    """Name of ``compare``."""
    normalise: Literal["client", "class"] = "client"
    """How counts become distributions: ``clustering.normalise_counts``."""
    pseudo_rows: float = 0.0
    """Added to each count before that: docs/decisions/0034-a-row-in-every-class.md."""
    chosen_by: str = "silhouette"
    """What sets the number of clusters when the settings do not."""

    def shares(self, counts: FloatArray) -> FloatArray:
        """Return the distributions (n, K) that are compared, of rows of each class (n, K)."""
        return algorithms.normalise_counts(counts + self.pseudo_rows, self.normalise)

    def grouped(self, counts: FloatArray, rng: np.random.Generator) -> ScoredClusters:
        """Return the clusters of sites with these rows of each class, (n, K)."""
        shares = self.shares(counts)
        return self.cluster(shares, self.compare(shares), rng)

    def cluster_of_last(self, counts: FloatArray, clusters: Clusters) -> int:
        """Return where the last site of ``counts`` (n, K) belongs, by clusters of the others."""
        shares = self.shares(counts)
        return self.place(shares[:-1], clusters, shares[-1])


@dataclass(frozen=True)
class LabelDistances(Grouping):
    """Sites grouped before round 1 by label distances that every two of them compute together."""

    needs: ClassVar[frozenset[str]] = frozenset({"label-distances"})
    needs_classes: ClassVar[str] = "label distributions"
    played_by: ClassVar[str] = f"{STRATEGIES}.label_distances:LabelDistanceClustering"
    cluster: Clusterer
    """It gets the distances alone: the descriptors are (n, 0)."""
    metric: str
    """Of ``common.two_party.label_products.LABEL_PRODUCTS``."""


def by_distances(settings: Settings) -> LabelGroups:
    """k-medoids on the setting ``metric``: Famá, Algorithm 1."""
    compare = _label_metric(settings.metric)
    return LabelGroups(
        compare=compare,
        cluster=_k_medoids(settings),
        place=placement.nearest_medoid(compare),
        metric=settings.metric,
        pseudo_rows=_pseudo_rows(settings) if settings.metric == "kl" else 0.0,
    )


def _pseudo_rows(settings: Settings) -> float:
    """Return how many rows are added to each class where logarithms of noisy shares are compared.

    Noise makes some small shares 0 and others not, and the logarithms of which is which would
    decide who is alike. The paper's own form stays as the paper has it.
    """
    return 1.0 if settings.label_privacy in ("gaussian", "k-rr") else 0.0


def _label_metric(name: str) -> Dissimilarity:
    """Return a label metric; what one from elsewhere returns is checked, and named if unfit."""
    compare = LABEL_METRICS.named(name)
    if not LABEL_METRICS.is_foreign(name):
        return compare

    def checked(distributions: FloatArray) -> FloatArray:
        with contained(f"metric = {name!r}"):
            matrix = check_distances(compare(distributions))
            if len(matrix) != len(distributions):
                raise ClusteringError(f"distances of {len(matrix)} clients, not all")
        return matrix

    return checked


def by_distances_of_pairs(settings: Settings) -> LabelDistances:
    """k-medoids on the setting ``metric``, and no histogram leaves a site.

    Raises:
        ConfigError: a metric that two sites cannot compute together, or more than one grouping.
    """
    LABEL_METRICS.named(settings.metric)
    pairs = [name for name in LABEL_PRODUCTS if name in LABEL_METRICS]
    if settings.metric not in pairs:
        raise ConfigError(
            f"metric = {settings.metric!r}: with label-privacy=two-party it must be one of "
            f"{', '.join(pairs)}; take one, or label-privacy=gaussian"
        )
    if settings.recluster_every:
        raise ConfigError(
            f"recluster-every = {settings.recluster_every}: with label-privacy=two-party distances "
            "are computed once per run, for their noise must not average out; set it to 0"
        )
    return LabelDistances(_k_medoids(settings), settings.metric)


def by_k_means(settings: Settings) -> LabelGroups:
    """k-means in symmetrised KL: SimClust, Pereira III-A."""
    return LabelGroups(
        compare=symmetric_kl,
        cluster=_symmetric_kl_k_means(settings),
        place=placement.nearest_centre,
        metric="symmetric-kl",
        normalise=settings.of(NormaliseSettings).normalise,
        pseudo_rows=_pseudo_rows(settings),
    )


def by_repulsion(settings: Settings) -> LabelGroups:
    """Groups diverse inside and alike outside: RepClust, Pereira III-B.

    The number of groups, if not set, makes them as large as a round.
    """
    if not (settings.num_clusters or settings.clients_per_round):
        raise ConfigError(
            f"num-clusters = 0 and clients-per-round = 0: strategy={settings.strategy} makes "
            "groups as large as a round; set clients-per-round, or num-clusters"
        )
    return LabelGroups(
        compare=symmetric_kl,
        cluster=_repulsive(settings),
        place=placement.most_diverse,
        metric="symmetric-kl",
        normalise=settings.of(NormaliseSettings).normalise,
        pseudo_rows=_pseudo_rows(settings),
        chosen_by="clients-per-round",
    )


def _k_medoids(settings: Settings) -> Clusterer:
    k, most = settings.num_clusters, settings.max_clusters

    def cluster(_: FloatArray, distances: FloatArray, rng: np.random.Generator) -> ScoredClusters:
        if k:
            return ScoredClusters(algorithms.k_medoids(distances, k, rng), scores={})
        return algorithms.silhouette_sweep(distances, rng, max_clusters=most)

    return cluster


def _symmetric_kl_k_means(settings: Settings) -> Clusterer:
    k, most = settings.num_clusters, settings.max_clusters

    def cluster(shares: FloatArray, _: FloatArray, rng: np.random.Generator) -> ScoredClusters:
        if k:
            return ScoredClusters(algorithms.symmetric_kl_k_means(shares, k, rng), scores={})
        return algorithms.symmetric_kl_k_means_by_silhouette(shares, rng, most)

    return cluster


def _repulsive(settings: Settings) -> Clusterer:
    k, size = settings.num_clusters, settings.clients_per_round

    def cluster(shares: FloatArray, _: FloatArray, rng: np.random.Generator) -> ScoredClusters:
        if k:
            clusters = algorithms.repulsive(shares, k, rng)
            return ScoredClusters(clusters, scores={}, score="diversity")
        return algorithms.repulsive_by_size(shares, size, rng)

    return cluster
