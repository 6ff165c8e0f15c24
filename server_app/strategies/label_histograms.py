"""Label histograms: what every site says of its labels before round 1, or when it joins."""

import logging
from dataclasses import replace

import numpy as np
from flwr.serverapp import Grid

from common import messages
from common.config import Settings
from common.messages import Order
from common.privacy.labels import label_mechanism
from server_app.clustering.algorithms import Clusters
from server_app.methods import Method
from server_app.record.checkpoint import State
from server_app.record.run_folder import RunFolder
from server_app.rounds.exchange import Answer, Exchange
from server_app.rounds.guard import inspect_exact_histogram, inspect_noisy_histogram
from server_app.rounds.roster import Roster
from server_app.selection.rules import View
from server_app.strategies.base import FederatedTraining

log = logging.getLogger("coterie")


class LabelHistograms(FederatedTraining):
    """Asks every site for its label histogram, shows them to the selection, and plays the rounds.

    A site that joins late is asked, too.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        self._counts = np.empty((0, 0), dtype=np.float64)

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Query the histograms; who gives no usable one is left out."""
        self.roster.require("label-histogram", why=f"strategy={self.settings.strategy}")
        self._say_protection()
        answers = self._histograms(self.roster, np.arange(len(self.roster)), grid, timeout)
        names = self.roster.names
        bad = {
            answer.client: f"no label histogram from {names[answer.client]}: {answer.verdict}"
            for answer in answers
            if answer.value is None
        }
        if bad:
            self.leave_out(bad)
        told = [answer.value for answer in answers if answer.value is not None]
        self._counts = np.array(told, dtype=np.float64)

    def shown(self, view: View) -> View:
        """Add the histograms as the server knows them."""
        products = self._counts @ self._counts.T
        return replace(view, label_counts=self._counts, label_products=products)

    def state(self) -> State:
        """Return the histograms, too."""
        return {**super().state(), "counts": self._counts}

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on with the histograms known before; nobody is asked again."""
        super().restore(state, grid, timeout)
        self._counts = state["counts"]

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Ask each newcomer; leave out who does not answer."""
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
                self._counts = np.vstack([self._counts, answer.value])
                labels = np.append(self.clusters.labels, self.cluster_of_newcomer())
                self.clusters = Clusters(labels)
        return newcomers.subset(kept) if kept else None

    def cluster_of_newcomer(self) -> int:
        """Return the cluster of the site whose histogram came last; here there is only one."""
        return 0

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
