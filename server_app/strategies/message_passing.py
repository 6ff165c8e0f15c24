"""Message passing: a model for each site, drawn to those of sites like it before it trains."""

import logging

import numpy as np
from flwr.serverapp import Grid

from common.config import Settings
from server_app.averaging import average
from server_app.clustering.message_passing import Attention, attention
from server_app.methods import Method
from server_app.record.run_folder import RunFolder
from server_app.rounds.attempt import Attempt
from server_app.rounds.memory import flat
from server_app.rounds.roster import Roster
from server_app.strategies.base import FederatedTraining

log = logging.getLogger("coterie")

Model = dict[str, np.ndarray]


class MessagePassing(FederatedTraining):
    """Rounds in which site i gets sum_j xi_ij w_j, w_j what site j trained last: Huang et al.

    The server keeps each w_j, and sends it for evaluation. Who does not train keeps its own.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        assert isinstance(method.describe, Attention)
        self._attention: Attention = method.describe

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Refuse a step that is too large for so many sites, before round 1."""
        self._attention.check(len(self.roster))

    def train(self, attempt: Attempt) -> float | None:
        """Draw the models to each other, and let those that were trained take their places."""
        known = self.models
        with attempt.timed("server"), self.meter.phase("pre"):
            self.models = self._drawn(known)
        loss = super().train(attempt)
        trained = {answer.model for answer, _, _ in attempt.trained}
        self.models = [
            after if number in trained else before
            for number, (before, after) in enumerate(zip(known, self.models, strict=True))
        ]
        attempt.divergence.clear()  # each update is all of its model
        return loss

    def _drawn(self, models: list[Model]) -> list[Model]:
        """Return what each site is sent."""
        points = np.array([flat(model) for model in models])
        shares = attention(points, self._attention.alpha, self._attention.sigma)
        own = shares.diagonal()
        log.info("share of its own model that a site gets: %.3g to %.3g", own.min(), own.max())
        return [average(models, mine) for mine in shares]

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Give sites that joined before a round the mean model; leave out more than alpha bears."""
        n = len(self.roster.joined(newcomers))
        if self._attention.alpha * (n - 1) > self._attention.sigma:
            log.warning("fedamp-alpha is too large for %d sites: who joined is left out", n)
            return None
        admitted = super().admit(newcomers, server_round, grid, timeout)
        mean = average(self.models, np.ones(len(self.models)))
        self.models += [mean] * (n - len(self.models))
        return admitted
