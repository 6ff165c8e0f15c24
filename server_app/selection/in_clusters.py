"""Selection in clusters: everybody, one at random, who is served worst or sends cheaply."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from server_app.selection.rules import Cohort, Everybody, OnePerCluster, Selection, View

__all__ = ["IN_CLUSTERS", "CheapUpload", "WorstHalf"]


@dataclass(frozen=True)
class WorstHalf(Selection):
    """The half of every cluster with the lowest last accuracy (Talasso et al., section III-E).

    Power-of-choice inside a cluster C: max(1, floor(|C| / 2)) of its available members, ties to
    the earlier; a client whose accuracy is not known counts as the worst.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"accuracies"})

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


@dataclass(frozen=True)
class CheapUpload(Selection):
    """One available client of every cluster, in proportion to how cheap its upload is.

    The future work of Famá et al., section V: selection that sees the quality of the links as
    well. A client that sends in half the time is drawn twice as often as another of its cluster,
    and nobody never; what is sent costs its time on the air, so this is in proportion to joules.
    Where all links are equal it is :class:`OnePerCluster`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"links"})

    def choose(self, view: View, rng: np.random.Generator) -> Cohort:
        """Return the draw; a cluster with nobody available sits the round out."""
        assert view.upload_seconds is not None
        chosen: list[int] = []
        for cluster in range(view.clusters.k):
            members = view.clusters.members(cluster)
            present = members[view.available[members]]
            if len(present):
                seconds = view.upload_seconds[present]
                ease = 1 / seconds if seconds.all() else np.ones(len(present))
                chosen.append(int(rng.choice(present, p=ease / ease.sum())))
        return Cohort(np.array(sorted(chosen), dtype=np.int64))


IN_CLUSTERS: Mapping[str, Selection] = {
    "all": Everybody(),
    "random": OnePerCluster(),
    "worst": WorstHalf(),
    "link-aware": CheapUpload(),
}
"""Values of the setting ``selection``."""
