"""Groups by rows: sites described by some of their rows alone, compared pair by pair and merged.

Sources, named in the lines that implement them:

- Vahidian: "Efficient Distribution Similarity Identification in Clustered Federated Learning via
  Principal Angles Between Client Data Subspaces" (Vahidian et al., 2023), PACFL.
- Zhang: "EMD-CFL" (Zhang, Williams, Toni, 2025), arXiv 2506.07769.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.spatial.distance import cdist

from common import messages
from common.config import Settings
from common.errors import ConfigError
from common.plugins import PieceSettings
from common.transport_plan import transport_cost
from server_app.clustering.by_updates import principal_angles
from server_app.clustering.clusters import Clusters
from server_app.clustering.grouping import STRATEGIES, Grouping
from server_app.clustering.hierarchy import Hierarchy
from server_app.dissimilarity import FloatArray

__all__ = [
    "PacflSettings",
    "RowGroups",
    "by_embedded_rows",
    "by_principal_angles",
    "nearest_group",
    "wasserstein",
]

Compare = Callable[[Sequence[FloatArray]], FloatArray]


class PacflSettings(PieceSettings):
    """How PACFL compares subspaces, and where the merging ends."""

    pacfl_angles: Literal["smallest", "sum"] = Field(
        "smallest",
        description="pacfl: distance of two sites, the smallest angle between their subspaces or "
        "the sum of all",
    )
    pacfl_threshold: float = Field(
        0,
        ge=0,
        description="pacfl: degrees up to which groups merge; 0: num-clusters, or the silhouette",
    )

    def check(self, settings: Settings) -> None:
        """Refuse two ways to end."""
        if self.pacfl_threshold and settings.strategy == "pacfl" and settings.num_clusters:
            raise ValueError(
                f"pacfl-threshold = {self.pacfl_threshold:g} and num-clusters = "
                f"{settings.num_clusters} both end the merging; leave one of them out"
            )


@dataclass(frozen=True)
class RowGroups(Grouping):
    """Sites grouped once, by an array of numbers from each: before round 1, or after it."""

    question: str
    """Kind of the message that asks for the arrays: ``query.class_bases``, before round 1 and
    about no model, or ``query.embedded_rows``, after round 1 and about its model."""
    release: str
    """What every site must release for it."""
    compare: Compare
    """One array for each site -> distances (n, n)."""
    hierarchy: Hierarchy
    metric: str
    """Name of the distance."""
    needs: frozenset[str] = frozenset()
    needs_classes: str = ""

    played_by: ClassVar[str] = f"{STRATEGIES}.row_descriptions:RowDescriptions"

    @property
    def about_a_model(self) -> bool:
        """Whether sites are asked about a model, which everybody trains in round 1 first."""
        return self.question == messages.EMBEDDED_ROWS


def by_principal_angles(settings: Settings) -> RowGroups:
    """Compare what directions the rows of each class span, before round 1: PACFL, Vahidian.

    Raises:
        ConfigError: more than one grouping.
    """
    _refuse_again(settings, "the rows stay what they are")
    own = settings.of(PacflSettings)

    def compare(bases: Sequence[FloatArray]) -> FloatArray:
        return principal_angles(bases, own.pacfl_angles)

    return RowGroups(
        question=messages.CLASS_BASES,
        release="class-bases",
        compare=compare,
        hierarchy=_average(settings, own.pacfl_threshold or None),
        metric=f"{own.pacfl_angles} principal angle, degrees",
        needs=frozenset({"class-bases"}),
        needs_classes="directions of the rows of each class",
    )


def by_embedded_rows(settings: Settings) -> RowGroups:
    """Compare what the model of round 1 makes of some rows of each site: EMD-CFL, Zhang.

    Raises:
        ConfigError: more than one grouping.
    """
    _refuse_again(settings, "rows are embedded by one model")
    return RowGroups(
        question=messages.EMBEDDED_ROWS,
        release="representations",
        compare=wasserstein,
        hierarchy=_average(settings),
        metric="1-Wasserstein distance of embedded rows",
        needs=frozenset({"representations"}),
    )


def wasserstein(sites: Sequence[FloatArray]) -> FloatArray:
    """Return the exact 1-Wasserstein distance of every two sites' rows, (n, n) >= 0: Zhang.

    All rows of a site weigh the same; the cost between two is Euclidean.

    >>> float(wasserstein([np.array([[0.0], [2.0]]), np.array([[1.0]])])[0, 1])
    1.0

    Args:
        sites: of each (rows, width), at least one row and the same width.
    """
    found = np.zeros((len(sites), len(sites)))
    for i, one in enumerate(sites):
        for j, other in enumerate(sites[:i]):
            costs = cdist(np.asarray(one, np.float64), np.asarray(other, np.float64))
            found[i, j] = found[j, i] = transport_cost(costs)
    return found


def nearest_group(distances: FloatArray, clusters: Clusters) -> int:
    """Return the group of least mean distance to a newcomer, ties to the earlier.

    Args:
        distances: (n,) to the others; NaN where one cannot be compared.
        clusters: of the others; in some group somebody can be compared.
    """
    means = [
        float(np.nanmean(own)) if np.isfinite(own).any() else np.inf
        for own in (distances[clusters.members(group)] for group in range(clusters.k))
    ]
    return int(np.argmin(means))


def _average(settings: Settings, threshold: float | None = None) -> Hierarchy:
    return Hierarchy("average", threshold, settings.num_clusters, settings.max_clusters)


def _refuse_again(settings: Settings, why: str) -> None:
    if settings.recluster_every:
        raise ConfigError(
            f"recluster-every = {settings.recluster_every}: strategy={settings.strategy} groups "
            f"once, for {why}; set it to 0"
        )
