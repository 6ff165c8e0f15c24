"""Who trains inside a cluster: everybody, one at random, or those that are served worst."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from server_app.selection import Cohort, Everybody, OnePerCluster, Selection, View

__all__ = ["IN_CLUSTERS", "WorstHalf"]


@dataclass(frozen=True)
class WorstHalf(Selection):
    """The half of every cluster with the lowest last accuracy (Talasso et al., section III-E).

    Power-of-choice inside a cluster C: max(1, floor(|C| / 2)) of its available members, ties to
    the earlier; a client whose accuracy is not known counts as the worst.
    """

    def choose(self, view: View, rng: np.random.Generator) -> Cohort:
        """Return the cohort; draws nothing."""
        known = np.zeros(len(view.available)) if view.accuracies is None else view.accuracies
        scores = np.where(np.isnan(known), -1.0, known)
        chosen: list[int] = []
        for cluster in range(view.clusters.k):
            members = view.clusters.members(cluster)
            present = members[view.available[members]]
            worst = present[np.argsort(scores[present], kind="stable")]
            chosen += worst[: max(1, len(present) // 2)].tolist()
        return Cohort(np.array(sorted(chosen), dtype=np.int64))


IN_CLUSTERS: Mapping[str, Selection] = {
    "all": Everybody(),
    "random": OnePerCluster(),
    "worst": WorstHalf(),
}
"""Values of the setting ``selection``."""
