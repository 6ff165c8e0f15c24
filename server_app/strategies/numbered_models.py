"""Numbered models: a model number for each site, where a model may be left without sites."""

import logging
import math
from collections.abc import Mapping

import numpy as np
from flwr.serverapp import Grid

from common.config import Settings
from server_app.clustering.clusters import Clusters
from server_app.methods import Method
from server_app.record.checkpoint import State
from server_app.record.clusters_format import ClustersFile
from server_app.record.run_folder import RunFolder
from server_app.rounds.attempt import Attempt
from server_app.rounds.roster import Roster
from server_app.strategies.base import FederatedTraining

log = logging.getLogger("coterie")

NO_MODEL = -1
"""Of a site that has none yet."""


class NumberedModels(FederatedTraining):
    """Rounds of several models of which sites change; :class:`Clusters` knows no empty ones.

    A model that nobody trains in a round is idle: it stays as it is bit for bit, and that is said.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        self.numbers = np.full(len(roster), NO_MODEL, dtype=np.int64)
        """(n,) model of each client; :data:`NO_MODEL`: none yet."""

    @property
    def routes(self) -> np.ndarray:
        """The model index of each client, (n,) ints."""
        return self.numbers

    def state(self) -> State:
        """Return the numbers, beside what every run keeps."""
        return {**super().state(), "numbers": self.numbers}

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on with the numbers that there were."""
        super().restore(state, grid, timeout)
        self.numbers = np.array(state["numbers"], dtype=np.int64)

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Take sites that joined before a round; they have no model yet."""
        added = len(self.roster.joined(newcomers)) - len(self.roster)
        self.numbers = np.append(self.numbers, np.full(added, NO_MODEL))
        return super().admit(newcomers, server_round, grid, timeout)

    def renumber(self, attempt: Attempt, told: Mapping[int, int]) -> None:
        """Give some clients their models for what follows, and write down who has which.

        Args:
            attempt: the round's.
            told: client -> model.
        """
        before, numbers = self.numbers, self.numbers.copy()
        clients = list(told)
        numbers[clients] = list(told.values())
        if (before[clients] != NO_MODEL).any():
            known = before != NO_MODEL
            attempt.drift = float(np.mean(before[known] != numbers[known]))
        self.numbers = numbers
        self.clusters = Clusters.from_labels(numbers)
        sites = zip(self.roster.names, numbers.tolist(), strict=True)
        self.folder.store(
            ClustersFile(
                round=attempt.round,
                strategy=self.settings.strategy,
                num_clusters=len(self.models),
                chosen_by="num-clusters",
                drift=math.nan if attempt.drift is None else attempt.drift,
                sites={name: number for name, number in sites if number != NO_MODEL},
            )
        )

    def note_updates(self, attempt: Attempt, trained: np.ndarray) -> None:
        """Put on record how many updates each model gets, and say which get none.

        Args:
            attempt: the round's.
            trained: model of each update that counts.
        """
        sizes = np.bincount(trained, minlength=len(self.models))
        attempt.model_updates = tuple(sizes.tolist())
        idle = ", ".join(map(str, np.flatnonzero(sizes == 0)))
        log.info("updates per model: %s", ", ".join(map(str, sizes)))
        if idle:
            log.info("idle, and left as they are: models %s", idle)
