"""Label distances: clustering of the sites by distances that every two of them compute together."""

import logging

import numpy as np
from flwr.serverapp import Grid

from common import seeds
from common.config import Settings
from common.two_party.label_products import LABEL_PRODUCTS
from common.two_party.messages import LABELS, PRODUCTS, TwoPartyOrder
from server_app.dissimilarity import FloatArray
from server_app.methods import LabelDistances, Method
from server_app.protection.two_party import TwoPartyProducts, two_party_products
from server_app.record.run_folder import RunFolder
from server_app.rounds.roster import Roster
from server_app.strategies.base import FederatedTraining

log = logging.getLogger("coterie")


class LabelDistanceClustering(FederatedTraining):
    """Has the sites compute their label distances in pairs, groups them, then plays the rounds.

    No histogram leaves a site. Distances are computed once: a site that joins late has none and is
    left out, and nobody is grouped anew.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        assert isinstance(method.group, LabelDistances)
        self._group: LabelDistances = method.group

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Take the products of every two sites and form the clusters."""
        order = TwoPartyOrder(purpose=LABELS, round=0, reveal=PRODUCTS)
        products = two_party_products(order, self.roster, grid, timeout)
        distances = self._distances(products)
        rng = seeds.generator(self.settings.seed, "clustering")
        grouping = self._group.cluster(np.empty((len(self.roster), 0)), distances, rng)
        self.clusters = grouping.clusters
        sizes = sorted(self.clusters.sizes.tolist(), reverse=True)
        log.info("%d clusters of sizes %s", self.clusters.k, ", ".join(map(str, sizes)))
        record = {
            "round": 0,
            "strategy": self.settings.strategy,
            "metric": self._group.metric,
            "num_clusters": self.clusters.k,
            "chosen_by": "num-clusters" if self.settings.num_clusters else "silhouette",
            "score": grouping.score,
            "scores": {str(k): score for k, score in grouping.scores.items()},
            "drift": None,
            "sites": dict(zip(self.roster.names, self.clusters.labels.tolist(), strict=True)),
        }
        self.folder.write_json("clusters.json", record)
        arrays = {
            "kind": np.array("label-distances"),
            "sites": np.array(self.roster.names),
            "descriptors": distances,
            "distances": distances,
            "labels": self.clusters.labels,
        }
        self.folder.write_arrays("dissimilarity.npz", arrays)

    def _distances(self, products: TwoPartyProducts) -> FloatArray:
        """Return the distances (n, n): symmetric, 0 on the diagonal."""
        distances = np.zeros((len(self.roster), len(self.roster)))
        for (left, right, _), value in products.values.items():
            distances[left, right] = distances[right, left] = value.item()
        how, num_classes = LABEL_PRODUCTS[self._group.metric], self.roster.sites[0].num_classes
        found = how.distance(distances, num_classes)
        np.fill_diagonal(found, 0.0)
        return found

    def admit(self, newcomers: Roster, grid: Grid, timeout: float) -> Roster | None:
        """Let back in who was there before; leave out who was not when distances were computed."""
        back = [site for site, name in enumerate(newcomers.names) if name in self.roster.names]
        for name in newcomers.names:
            if name not in self.roster.names:
                log.warning("%s joined but is left out: label distances were taken before", name)
        if not back:
            return None
        return newcomers.subset(back)
