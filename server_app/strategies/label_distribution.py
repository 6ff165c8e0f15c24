"""Label distributions: clustering of the sites by them, before round 1 and, if asked, again."""

import logging
import math
from dataclasses import replace

import numpy as np
from flwr.serverapp import Grid

from common import seeds
from common.config import Settings
from server_app.clustering import placement
from server_app.clustering.algorithms import ScoredClusters
from server_app.clustering.by_labels import LabelGroups
from server_app.methods import Method
from server_app.record.checkpoint import State
from server_app.record.clusters_format import ClustersFile
from server_app.record.run_folder import RunFolder
from server_app.rounds.roster import Roster
from server_app.strategies.label_histograms import LabelHistograms

log = logging.getLogger("coterie")


class LabelDistributionClustering(LabelHistograms):
    """Groups the sites by their label histograms, then plays the rounds.

    A site that joins late is put where it fits; every ``recluster-every`` rounds all are asked
    again and grouped anew.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        assert isinstance(method.group, LabelGroups)
        self._group: LabelGroups = method.group
        self._formed = ClustersFile()

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Query the histograms and form the clusters."""
        super().prepare(grid, timeout)
        grouping = self._grouped()
        self.clusters = grouping.clusters
        self._note(0, grouping, drift=None)
        sizes = sorted(self.clusters.sizes.tolist(), reverse=True)
        log.info("%d clusters of sizes %s", self.clusters.k, ", ".join(map(str, sizes)))

    def state(self) -> State:
        """Return the clusters with what they were formed from."""
        return {**super().state(), "formed": self._formed.to_json()}

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on with the clusters formed before; nobody is asked again."""
        super().restore(state, grid, timeout)
        self._formed = ClustersFile.from_json(state["formed"])

    def before_round(self, server_round: int, grid: Grid, timeout: float) -> float | None:
        """Group the sites anew when it is time, and return what share of them changed cluster."""
        every = self.settings.recluster_every
        if not every or server_round == 1 or (server_round - 1) % every:
            return None
        self._labels.ask_again(self.roster, grid, timeout)
        grouping = self._grouped()
        drift = placement.share_moved(self.clusters, grouping.clusters)
        self.regroup(placement.matched(self.clusters, grouping.clusters))
        self._note(server_round - 1, grouping, drift)
        log.info("%d clusters, %.0f %% of the sites moved", self.clusters.k, 100 * drift)
        return drift

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Put each newcomer into the cluster it is nearest to; leave out who does not answer."""
        admitted = super().admit(newcomers, server_round, grid, timeout)
        if admitted:
            self._write_clusters(self.roster.joined(admitted))
        return admitted

    def cluster_of_newcomer(self) -> int:
        """Return the nearest cluster."""
        return self._group.cluster_of_last(self._labels.counts, self.clusters)

    def _grouped(self) -> ScoredClusters:
        # The same draws every time: unless the counts changed, nobody moves.
        rng = seeds.generator(self.settings.seed, "clustering")
        return self._group.grouped(self._labels.counts, rng)

    def _note(self, after_round: int, grouping: ScoredClusters, drift: float | None) -> None:
        """Write down how the clusters came about, and between whom they were formed."""
        self._formed = ClustersFile(
            round=after_round,
            strategy=self.settings.strategy,
            metric=self._group.metric,
            num_clusters=self.clusters.k,
            chosen_by="num-clusters" if self.settings.num_clusters else self._group.chosen_by,
            score=grouping.score,
            scores={str(k): score for k, score in grouping.scores.items()},
            drift=math.nan if drift is None else drift,
        )
        self._write_clusters(self.roster)

    def _write_clusters(self, roster: Roster) -> None:
        labels = self.clusters.labels
        sites = dict(zip(roster.names, labels.tolist(), strict=True))
        self.folder.store(replace(self._formed, sites=sites))
        shares = self._group.shares(self._labels.counts)
        arrays = {
            "kind": np.array("label-histogram"),
            "sites": np.array(roster.names),
            "descriptors": shares,
            "distances": self._group.compare(shares),
            "labels": labels,
        }
        self.folder.write_arrays("dissimilarity.npz", arrays)
