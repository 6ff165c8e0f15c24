"""Label distances: clustering of the sites by distances that every two of them compute together."""

import logging
import math

import numpy as np
from flwr.serverapp import Grid

from common import seeds
from common.config import Settings
from common.two_party.messages import LABELS
from server_app.clustering.by_labels import LabelDistances
from server_app.methods import Method
from server_app.record.clusters_format import ClustersFile
from server_app.record.run_folder import RunFolder
from server_app.rounds.roster import Roster
from server_app.strategies.label_products import LabelPairs

log = logging.getLogger("coterie")


class LabelDistanceClustering(LabelPairs):
    """Has the sites compute their label distances in pairs, groups them, then plays the rounds.

    Distances are computed once: nobody is grouped anew.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        assert isinstance(method.group, LabelDistances)
        self._group: LabelDistances = method.group

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Take the products of every two sites and form the clusters."""
        distances = self.of_pairs(LABELS, self._group.metric, grid, timeout)
        rng = seeds.generator(self.settings.seed, "clustering")
        grouping = self._group.cluster(np.empty((len(self.roster), 0)), distances, rng)
        self.clusters = grouping.clusters
        sizes = sorted(self.clusters.sizes.tolist(), reverse=True)
        log.info("%d clusters of sizes %s", self.clusters.k, ", ".join(map(str, sizes)))
        record = ClustersFile(
            strategy=self.settings.strategy,
            metric=self._group.metric,
            num_clusters=self.clusters.k,
            chosen_by="num-clusters" if self.settings.num_clusters else "silhouette",
            score=grouping.score,
            scores={str(k): score for k, score in grouping.scores.items()},
            drift=math.nan,
            sites=dict(zip(self.roster.names, self.clusters.labels.tolist(), strict=True)),
        )
        self.folder.store(record)
        arrays = {
            "kind": np.array("label-distances"),
            "sites": np.array(self.roster.names),
            "descriptors": distances,
            "distances": distances,
            "labels": self.clusters.labels,
        }
        self.folder.write_arrays("dissimilarity.npz", arrays)
