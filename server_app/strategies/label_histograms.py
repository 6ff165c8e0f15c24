"""Label histograms: what every site says of its labels before round 1, or when it joins."""

from dataclasses import replace

import numpy as np
from flwr.serverapp import Grid

from common.config import Settings
from server_app.clustering.algorithms import Clusters
from server_app.methods import Method
from server_app.record.checkpoint import State
from server_app.record.run_folder import RunFolder
from server_app.rounds.label_inquiry import LabelInquiry
from server_app.rounds.roster import Roster
from server_app.selection.rules import View
from server_app.strategies.base import FederatedTraining


class LabelHistograms(FederatedTraining):
    """Asks every site for its label histogram, shows them to the selection, and plays the rounds.

    A site that joins late is asked, too.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        self._labels = LabelInquiry(settings)

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Query the histograms; who gives no usable one is left out."""
        self.roster.require("label-histogram", why=f"strategy={self.settings.strategy}")
        bad = self._labels.ask_all(self.roster, grid, timeout)
        if bad:
            self.leave_out(bad)

    def shown(self, view: View) -> View:
        """Add the histograms as the server knows them."""
        counts = self._labels.counts
        return replace(view, label_counts=counts, label_products=counts @ counts.T)

    def state(self) -> State:
        """Return the histograms, too."""
        return {**super().state(), "counts": self._labels.counts}

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on with the histograms known before; nobody is asked again."""
        super().restore(state, grid, timeout)
        self._labels.counts = state["counts"]

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Ask each newcomer; leave out who does not answer."""
        return self._labels.admit(newcomers, self.roster, grid, timeout, self._place_newcomer)

    def cluster_of_newcomer(self) -> int:
        """Return the cluster of the site whose histogram came last; here there is only one."""
        return 0

    def _place_newcomer(self) -> None:
        self.clusters = Clusters(np.append(self.clusters.labels, self.cluster_of_newcomer()))
