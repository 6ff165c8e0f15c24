"""Label distributions: clustering of the sites by them, before round 1 and, if asked, again."""

import logging
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from common import messages, seeds
from common.config import Settings
from common.errors import RoundError
from common.messages import Order
from common.privacy.labels import label_mechanism
from server_app.clustering import placement
from server_app.clustering.algorithms import Clusters, ScoredClusters, normalise_counts
from server_app.methods import LabelGroups, Method
from server_app.record.checkpoint import State
from server_app.record.run_folder import RunFolder
from server_app.rounds.exchange import OK, Answer, Exchange
from server_app.rounds.guard import inspect_exact_histogram, inspect_noisy_histogram
from server_app.rounds.roster import Roster
from server_app.strategies.base import FederatedTraining

log = logging.getLogger("coterie")


class LabelDistributionClustering(FederatedTraining):
    """Asks every site for its label histogram, groups the sites, then plays the rounds.

    A site that joins late is asked too and put where it fits; every ``recluster-every`` rounds all
    are asked again and grouped anew.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        assert isinstance(method.group, LabelGroups)
        self._group: LabelGroups = method.group
        self._counts = np.empty((0, 0), dtype=np.float64)
        self._formed: dict[str, Any] = {}

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Query the histograms and form the clusters; every site must answer."""
        self.roster.require("label-histogram", why=f"strategy={self.settings.strategy}")
        self._say_protection()
        answers = self._histograms(self.roster, np.arange(len(self.roster)), grid, timeout)
        bad = [answer for answer in answers if answer.verdict != OK]
        if bad:
            raise RoundError(
                f"no label histogram from {self.roster.names[bad[0].client]}: {bad[0].verdict}; "
                "clusters need every site's, so repair or leave out the site"
            )
        self._counts = np.array([answer.value for answer in answers], dtype=np.float64)
        grouping = self._grouped()
        self.clusters = grouping.clusters
        self._note(0, grouping)
        sizes = sorted(self.clusters.sizes.tolist(), reverse=True)
        log.info("%d clusters of sizes %s", self.clusters.k, ", ".join(map(str, sizes)))

    def state(self) -> State:
        """Return the clusters with what they were formed from."""
        return {**super().state(), "counts": self._counts, "formed": self._formed}

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on with the clusters formed before; nobody is asked again."""
        super().restore(state, grid, timeout)
        self._counts, self._formed = state["counts"], dict(state["formed"])

    def before_round(self, server_round: int, grid: Grid, timeout: float) -> None:
        """Group the sites anew when it is time, and note how many changed cluster."""
        every = self.settings.recluster_every
        if not every or server_round == 1 or (server_round - 1) % every:
            return
        self._refresh_counts(grid, timeout)
        grouping = self._grouped()
        self._drift = placement.share_moved(self.clusters, grouping.clusters)
        self.regroup(placement.matched(self.clusters, grouping.clusters))
        self._note(server_round - 1, grouping)
        log.info("%d clusters, %.0f %% of the sites moved", self.clusters.k, 100 * self._drift)

    def admit(self, newcomers: Roster, grid: Grid, timeout: float) -> Roster | None:
        """Put each newcomer into the cluster it is nearest to; leave out who does not answer."""
        answers = self._histograms(newcomers, np.arange(len(newcomers)), grid, timeout)
        kept = []
        for answer in answers:
            name = newcomers.names[answer.client]
            if answer.value is None:
                log.warning("%s joined but is left out: %s", name, answer.verdict)
                continue
            kept.append(answer.client)
            if name in self.roster.names:
                self._counts[self.roster.names.index(name)] = answer.value
            else:
                self._place(answer.value)
        if not kept:
            return None
        admitted = newcomers.subset(kept)
        self._write_clusters(self.roster.joined(admitted))
        return admitted

    def _place(self, counts: list[float]) -> None:
        self._counts = np.vstack([self._counts, counts])
        shares = normalise_counts(self._counts, self._group.normalise)
        cluster = self._group.place(shares[:-1], self.clusters, shares[-1])
        self.clusters = Clusters(np.append(self.clusters.labels, cluster))

    def _grouped(self) -> ScoredClusters:
        shares = normalise_counts(self._counts, self._group.normalise)
        # The same draws every time: unless the counts changed, nobody moves.
        rng = seeds.generator(self.settings.seed, "clustering")
        return self._group.cluster(shares, self._group.compare(shares), rng)

    def _refresh_counts(self, grid: Grid, timeout: float) -> None:
        """Ask the connected sites again; one that does not answer keeps its last histogram."""
        present = np.flatnonzero(self.roster.available(grid))
        for answer in self._histograms(self.roster, present, grid, timeout):
            if answer.value is None:
                name = self.roster.names[answer.client]
                log.warning("%s: its last label histogram is used: %s", name, answer.verdict)
            else:
                self._counts[answer.client] = answer.value

    def _histograms(
        self, roster: Roster, clients: np.ndarray, grid: Grid, timeout: float
    ) -> list[Answer[list[float]]]:
        """Return the answers of some clients of a roster to the question for label counts (K,)."""
        exchange = Exchange(
            roster,
            messages.LABEL_HISTOGRAM,
            contents=[messages.content()],
            orders=[Order(round=0, attempt=1, model=0)],
            models=dict.fromkeys(clients.tolist(), 0),
        )
        replies = grid.send_and_receive(exchange.outgoing(), timeout=timeout)
        noisy = self.settings.label_privacy != "none"
        inspect = inspect_noisy_histogram if noisy else inspect_exact_histogram
        return exchange.answers(replies, inspect)

    def _say_protection(self) -> None:
        mechanism = label_mechanism(self.settings, self.roster.sites[0].num_classes)
        if mechanism is not None:
            log.info(
                "label histograms: %s; epsilon %.3g at delta %.3g, to %s",
                mechanism.name,
                *mechanism.promise,
                mechanism.unit,
            )

    def _note(self, after_round: int, grouping: ScoredClusters) -> None:
        """Write down how the clusters came about, and between whom they were formed."""
        self._formed = {
            "round": after_round,
            "strategy": self.settings.strategy,
            "metric": self._group.metric,
            "num_clusters": self.clusters.k,
            "chosen_by": "num-clusters" if self.settings.num_clusters else self._group.chosen_by,
            "score": grouping.score,
            "scores": {str(k): score for k, score in grouping.scores.items()},
            "drift": self._drift,
        }
        self._write_clusters(self.roster)

    def _write_clusters(self, roster: Roster) -> None:
        labels = self.clusters.labels
        sites = dict(zip(roster.names, labels.tolist(), strict=True))
        self.folder.write_json("clusters.json", self._formed | {"sites": sites})
        shares = normalise_counts(self._counts, self._group.normalise)
        arrays = {
            "kind": np.array("label-histogram"),
            "sites": np.array(roster.names),
            "descriptors": shares,
            "distances": self._group.compare(shares),
            "labels": labels,
        }
        self.folder.write_arrays("dissimilarity.npz", arrays)
