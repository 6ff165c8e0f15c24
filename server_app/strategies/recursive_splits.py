"""Recursive splits: everybody trains, and a cluster whose members pull apart becomes two."""

import logging
from dataclasses import replace

import numpy as np
from flwr.serverapp import Grid

from common.config import Settings
from common.messages import Parameters
from server_app.clustering import placement
from server_app.clustering.by_updates import cosines
from server_app.clustering.clusters import Clusters
from server_app.clustering.splits import RecursiveSplits, Tension, nearer_part
from server_app.methods import Method
from server_app.record.checkpoint import State
from server_app.record.clusters_format import ClustersFile, SplitNote
from server_app.record.run_folder import RunFolder
from server_app.rounds.attempt import Attempt
from server_app.rounds.first_training import admitted, first_trained
from server_app.rounds.memory import flat
from server_app.rounds.roster import Roster
from server_app.strategies.base import FederatedTraining

log = logging.getLogger("coterie")


class RecursiveSplitting(FederatedTraining):
    """FedAvg inside each cluster, and cuts that are never mended: Sattler et al., Algorithm 2.

    The round of a split is averaged within the two parts already; both start from the model that
    they had together.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        assert isinstance(method.group, RecursiveSplits)
        self._group: RecursiveSplits = method.group
        self._splits: list[SplitNote] = []
        self._shared: Parameters | None = None
        """What everybody trained in the round of the first split."""
        self._shared_updates: np.ndarray = np.empty((0, 0), dtype=np.float32)
        """(n, parameters) what each site had last added to a common model then."""

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Write down that all sites are in one cluster."""
        self._write(0)

    def state(self) -> State:
        """Return what splits rest on, beside the clusters and the last updates."""
        return {
            **super().state(),
            "splits": [split.to_json() for split in self._splits],
            "shared": {} if self._shared is None else {"model": self._shared},
            "shared-updates": self._shared_updates,
        }

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on with the clusters that there were."""
        self._splits = [SplitNote.from_json(split) for split in state["splits"]]
        self._shared = state["shared"].get("model")
        self._shared_updates = state["shared-updates"]
        super().restore(state, grid, timeout)

    def before_average(self, attempt: Attempt) -> None:
        """Say how the members of each cluster pull, and split those where that is due."""
        self.memory = self.memory.trained(attempt.trained, self.models, len(self.roster))
        updates = self.memory.updates
        rows = {answer.client: report.num_examples for answer, report, _ in attempt.trained}
        # A round that is tried again is split again.
        self._splits = [split for split in self._splits if split.round < attempt.round]
        labels, before = self.clusters.labels.copy(), self.clusters
        for cluster in range(before.k):
            members = before.members(cluster)
            told = np.array([client for client in members if client in rows], dtype=np.int64)
            if not len(told):
                continue
            tension = Tension.of(updates[told], np.array([rows[client] for client in told]))
            log.info(
                "cluster %d: mean update of length %.4g, longest %.4g",
                *(cluster, tension.mean_norm, tension.longest_norm),
            )
            if self._group.is_due(attempt.round, len(members), tension):
                # Numbers inside the cluster become sites here: the authors' code forgets that.
                leaving = self._leaving(attempt.round, tension, members, told, updates)
                labels[leaving] = labels.max() + 1
        after = Clusters.from_labels(labels)
        if after != before:
            if before.k == 1:
                self._shared, self._shared_updates = self.models[0], updates.copy()
            attempt.drift = placement.share_moved(before, after)
            self.regroup(after)
            self._write(attempt.round)
            self._write_distances(updates)

    def _leaving(
        self,
        server_round: int,
        tension: Tension,
        members: np.ndarray,
        told: np.ndarray,
        updates: np.ndarray,
    ) -> np.ndarray:
        """Return the members of a cluster that leave it, in ascending order; none: no split.

        Who did not answer goes with those that its last update resembles; somebody without any
        update postpones the split.
        """
        found = self._group.parts(updates[told])
        if found is None:
            return members[:0]
        parts, across = found
        side = dict(zip(told.tolist(), parts.tolist(), strict=True))
        for client in members:
            if client not in side:
                if not updates[client].any():
                    name = self.roster.names[client]
                    log.info("a split waits for %s, which has not trained yet", name)
                    return members[:0]
                side[int(client)] = nearer_part(updates[client], updates[told], parts)
        leaving = np.array([client for client in members if side[int(client)] == 1])
        names = [
            tuple(self.roster.names[client] for client in members if side[int(client)] == part)
            for part in (0, 1)
        ]
        note = SplitNote(
            server_round, tension.mean_norm, tension.longest_norm, across, names[0], names[1]
        )
        self._splits.append(note)
        log.info("split: %s | %s", ", ".join(note.kept), ", ".join(note.left))
        return leaving

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Put each newcomer into the cluster that its update of the first common model resembles.

        Before the first split there is nothing to choose.
        """
        if self._shared is None or self.clusters.k == 1:
            return super().admit(newcomers, server_round, grid, timeout)
        known = self.roster.names
        answers = first_trained(newcomers, self._shared, server_round, grid, timeout)
        judged, past = self.norms.judged(self.memory.norms, answers, [self._shared])
        self.memory = replace(self.memory, norms=past)
        return admitted(newcomers, known, judged, self._place)

    def _place(self, trained: Parameters) -> None:
        assert self._shared is not None
        own = flat(trained) - flat(self._shared)
        # Sites beyond the first split's know no other update of that model than their own first.
        cluster = nearer_part(own, self._shared_updates, self.clusters.labels)
        self._shared_updates = np.vstack([self._shared_updates, own])
        self.clusters = Clusters(np.append(self.clusters.labels, cluster))

    def _write(self, server_round: int) -> None:
        sites = zip(self.roster.names, self.clusters.labels.tolist(), strict=True)
        self.folder.store(
            ClustersFile(
                round=server_round,
                strategy=self.settings.strategy,
                metric="cosine",
                num_clusters=self.clusters.k,
                chosen_by="splits",
                sites=dict(sites),
                splits=tuple(self._splits),
            )
        )

    def _write_distances(self, updates: np.ndarray) -> None:
        distances = 1.0 - cosines(updates)
        np.fill_diagonal(distances, 0.0)
        arrays = {
            "kind": np.array("update"),
            "sites": np.array(self.roster.names),
            "descriptors": 1.0 - distances,
            "distances": distances,
            "labels": self.clusters.labels,
        }
        self.folder.write_arrays("dissimilarity.npz", arrays)
