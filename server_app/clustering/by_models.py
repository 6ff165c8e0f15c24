"""Groups by models: what describes the model that a site returns, what compares, what groups.

Sources, named in the lines that implement them:

- Talasso: "FedSCCS: Hierarchical Clustering with Multiple Models for Federated Learning"
  (Talasso et al.), III-C, III-D, and its baselines RC, WC and KCenter.
- Morafah: "FLIS: Clustered Federated Learning via Inference Similarity for Non-IID Data
  Distribution" (Morafah et al.).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.spatial.distance import pdist, squareform

from common.config import Settings
from common.errors import ConfigError
from common.objectives import BATCH_NORM, BODY, HEAD
from common.plugins import PieceSettings
from server_app.clustering import algorithms
from server_app.clustering.clusters import Clusterer, Clusters, ScoredClusters
from server_app.clustering.grouping import STRATEGIES, Grouping
from server_app.clustering.hierarchy import Hierarchy
from server_app.clustering.placement import Placement
from server_app.dissimilarity import (
    Dissimilarity,
    FloatArray,
    cosine_dissimilarity,
    linear_cka,
    prediction_disagreement,
)

__all__ = [
    "PROBABILITIES",
    "FlisSettings",
    "ModelGroups",
    "ProbeSettings",
    "WeightsSettings",
    "by_activations",
    "by_predictions",
    "by_updates",
    "by_weights",
    "by_weights_around_centres",
    "cka_dissimilarity",
    "model_groups",
    "nearest_columns",
    "number_of_clusters",
    "randomly",
]

Describe = Literal["activations", "predictions", "weights", "all-weights", "update"]
"""What stands for a model: its activations or its predictions (class numbers) on the probe rows,
the weights of its last layer or of all, or what training added to all its parameters."""

PROBABILITIES = "probabilities"
"""The layer that is not one of the network's own: the softmax of its logits."""

# Kaufman and Rousseeuw, "Finding Groups in Data" (1990), table 4: up to here, no structure.
_NO_STRUCTURE = 0.25
# 1 - CKA, or 1 - cosine, that float32 sums in another order leave between equal models: the square
# of a relative difference of 3e-5, where training on equal rows in another order makes 1e-2.
_SAME = 1e-9


class ProbeSettings(PieceSettings):
    """On which rows models are compared, and by which of their layers."""

    paths: ClassVar[frozenset[str]] = frozenset({"probe_file"})
    cka_layer: str = Field(
        "probabilities",
        min_length=1,
        description="fedsccs: layer compared; probabilities, or a child of the network",
    )
    cka_probe: Literal["auto", "public", "noise", "client-rows"] = Field(
        "auto",
        description="rows on which models are compared; auto: probe-file if given, else noise; "
        "client-rows discloses rows of every site",
    )
    cka_probe_size: int = Field(
        100, ge=2, le=100_000, description="probe rows; client-rows: of each site"
    )
    probe_file: str = Field("", description="cka-probe=public: .npz with X, standardised rows")

    def check(self, settings: Settings) -> None:
        """Refuse a probe of two sources, or of none."""
        if self.cka_probe == "public" and not self.probe_file:
            raise ValueError("cka-probe = public: name the file of rows with probe-file")
        if self.probe_file and self.cka_probe in ("noise", "client-rows"):
            raise ValueError(f"probe-file and cka-probe = {self.cka_probe}: leave one of them out")

    def discloses(self, settings: Settings) -> frozenset[str]:
        """Return rows of the sites where the probe is made of them."""
        return frozenset({"probe-rows"} if self.cka_probe == "client-rows" else ())


class WeightsSettings(PieceSettings):
    """Which weights of models are compared."""

    compared_layers: Literal["last", "all"] = Field(
        "last",
        description="wc, kcenter: layers whose weights are compared; all did better on MotionSense",
    )

    @property
    def describe(self) -> Describe:
        """What stands for a model; Talasso section IV only says "the models' weights"."""
        return "all-weights" if self.compared_layers == "all" else "weights"


class FlisSettings(PieceSettings):
    """How alike the models of a group decide."""

    flis_threshold: float = Field(
        0.8, gt=0, le=1, description="flis: share of equal predictions inside a group"
    )


@dataclass(frozen=True)
class ModelGroups(Grouping):
    """Sites grouped by the models that they return in a round."""

    describe: Describe
    metric: str
    """Name of ``compare``."""
    compare: Callable[[NDArray[Any]], FloatArray]
    """Descriptors (n, ...) -> distances (n, n)."""
    cluster: Clusterer
    at_round: int
    """The first grouping takes place in this round, before its updates are averaged."""
    every: int
    """Rounds from one grouping to the next; 0: one grouping."""
    chosen_by: str
    """What set the number of clusters."""
    linkage: Callable[[FloatArray], FloatArray] | None = None
    """distances (n, n) -> merges (n-1, 4) as SciPy's; None where the grouping has no dendrogram."""
    place: Placement | None = None
    """Where a site that joins late belongs; None: in the cluster of the nearest columns of
    distances, Talasso eq. 6."""

    @property
    def needs(self) -> frozenset[str]:
        """Each site's model: of one round, or again and again."""
        return frozenset({"models", "every-model"} if self.every else {"models"})

    @property
    def reads(self) -> frozenset[str]:
        """The last layer where that is compared, and all of a model that is run on a probe."""
        if self.probes or self.describe == "all-weights":
            return frozenset({BODY, HEAD, BATCH_NORM})
        return frozenset({HEAD} if self.describe == "weights" else ())

    @property
    def needs_classes(self) -> str:
        """What models make of probe rows, if they are run on any."""
        if not self.probes:
            return ""
        return f"the {self.describe} of models, a row of numbers for each example"

    def reads_probabilities(self, settings: Settings) -> str:
        """Return predicted classes, or the probabilities of them, where they are compared."""
        if self.describe == "predictions":
            return "predicted classes"
        is_last = settings.of(ProbeSettings).cka_layer == PROBABILITIES
        of_last = self.describe == "activations" and is_last
        return "probabilities, unless cka-layer names a layer of the network" if of_last else ""

    played_by: ClassVar[str] = f"{STRATEGIES}.model_similarity:ModelSimilarityClustering"

    @property
    def probes(self) -> bool:
        """Whether models are run on probe rows."""
        return self.describe in ("activations", "predictions")

    def is_due(self, server_round: int) -> bool:
        """Return whether the sites are grouped in a round (from 1)."""
        since = server_round - self.at_round
        return since == 0 or (since > 0 and self.every > 0 and since % self.every == 0)


def by_activations(settings: Settings) -> ModelGroups:
    """Linear CKA and Ward's linkage on its columns: FedSCCS (Talasso III-C, III-D)."""
    return _by_ward(settings, "activations", "cka", cka_dissimilarity)


def by_weights(settings: Settings) -> ModelGroups:
    """Cosine of weights and Ward's linkage: Talasso's baseline WC."""
    describe = settings.of(WeightsSettings).describe
    return _by_ward(settings, describe, "cosine", cosine_dissimilarity)


def by_updates(settings: Settings) -> ModelGroups:
    """Cosine of the updates and Ward's linkage: WC with what CFL compares.

    Sattler et al., "Clustered Federated Learning" (2020), split in two again and again; here the
    dendrogram is cut once.
    """
    return _by_ward(settings, "update", "cosine", cosine_dissimilarity)


def by_weights_around_centres(settings: Settings) -> ModelGroups:
    """Greedy k-center on weights: Talasso's baseline KCenter."""
    k = number_of_clusters(settings)

    def cluster(_: FloatArray, distances: FloatArray, rng: np.random.Generator) -> ScoredClusters:
        return ScoredClusters(algorithms.k_center(distances, k, rng), scores={})

    describe = settings.of(WeightsSettings).describe
    return model_groups(settings, describe, "euclidean", _euclidean, cluster)


def randomly(settings: Settings) -> ModelGroups:
    """Random clusters, all numbers used: Talasso's baseline RC. Weights are compared for show."""
    k = number_of_clusters(settings)

    def cluster(_: FloatArray, distances: FloatArray, rng: np.random.Generator) -> ScoredClusters:
        return ScoredClusters(algorithms.random_clusters(len(distances), k, rng), scores={})

    return model_groups(settings, "weights", "cosine", cosine_dissimilarity, cluster)


def by_predictions(settings: Settings) -> ModelGroups:
    """Share of equal predictions, hierarchical grouping at a threshold, every round: Morafah.

    Groups merge while the mean share of equal predictions between them is at least
    ``flis-threshold``; the paper leaves the linkage open. Everybody trains in round 1; later a
    site that did not train is described by the last model that it returned.
    """
    hierarchy = Hierarchy("average", threshold=1 - settings.of(FlisSettings).flis_threshold)

    def cluster(_: FloatArray, distances: FloatArray, __: np.random.Generator) -> ScoredClusters:
        return hierarchy.cut(distances)

    return ModelGroups(
        describe="predictions",
        metric="prediction disagreement",
        compare=prediction_disagreement,
        cluster=cluster,
        at_round=1,
        every=settings.recluster_every or 1,
        chosen_by="flis-threshold",
        linkage=hierarchy.merges,
    )


def cka_dissimilarity(activations: FloatArray) -> FloatArray:
    """Return 1 - linear CKA, (n, n) in [0, 1], for activations (n, rows, width)."""
    return 1.0 - linear_cka(activations)


def nearest_columns(matrix: FloatArray, labels: NDArray[np.int64]) -> int:
    """Return the cluster whose mean column is nearest to the last client's, ties to the earlier.

    Args:
        matrix: (n + 1, n + 1) similarities or distances, the newcomer last.
        labels: (n,) clusters of the others.
    """
    columns, newcomer = matrix[:-1, :-1], matrix[-1, :-1]
    centres = [columns[labels == k].mean(axis=0) for k in range(labels.max() + 1)]
    return int(np.argmin(np.linalg.norm(np.array(centres) - newcomer, axis=1)))


def _by_ward(
    settings: Settings, describe: Describe, metric: str, compare: Dissimilarity
) -> ModelGroups:
    k, most = settings.num_clusters, settings.max_clusters

    def cluster(_: FloatArray, distances: FloatArray, __: np.random.Generator) -> ScoredClusters:
        similarities = 1.0 - distances
        if k:
            return ScoredClusters(algorithms.ward(similarities, k), scores={})
        if distances.max() <= _SAME:
            return ScoredClusters(Clusters.single(len(distances)), scores={})
        return _one_unless_structured(algorithms.ward_by_silhouette(similarities, most))

    return model_groups(settings, describe, metric, compare, cluster, _ward_linkage)


def model_groups(
    settings: Settings,
    describe: Describe,
    metric: str,
    compare: Dissimilarity,
    cluster: Clusterer,
    linkage: Callable[[FloatArray], FloatArray] | None = None,
) -> ModelGroups:
    """Return the grouping in round ``cluster-at-round``, and anew as the settings say."""
    return ModelGroups(
        describe=describe,
        metric=metric,
        compare=compare,
        cluster=cluster,
        at_round=settings.cluster_at_round,
        every=settings.recluster_every,
        chosen_by="num-clusters" if settings.num_clusters else "silhouette",
        linkage=linkage,
    )


def _one_unless_structured(grouping: ScoredClusters) -> ScoredClusters:
    """Return one cluster where the best silhouette is what models of the same data show too."""
    if grouping.scores[grouping.clusters.k if grouping.clusters.k > 1 else 2] > _NO_STRUCTURE:
        return grouping
    return ScoredClusters(Clusters.single(grouping.clusters.labels.size), grouping.scores)


def _ward_linkage(distances: FloatArray) -> FloatArray:
    # Talasso eq. 6: Euclidean distances between the columns of the similarity matrix.
    return algorithms.ward_linkage(1.0 - distances)


def _euclidean(vectors: FloatArray) -> FloatArray:
    return squareform(pdist(np.asarray(vectors, dtype=np.float64)))


def number_of_clusters(settings: Settings) -> int:
    """Return ``num-clusters`` for a method that cannot choose it; :class:`ConfigError` for 0."""
    if not settings.num_clusters:
        raise ConfigError(
            f"num-clusters = 0: strategy={settings.strategy} cannot choose the number of clusters; "
            "set num-clusters"
        )
    return settings.num_clusters
