"""A federation's rounds and nothing else: for sweeps of many small runs.

The local objectives, the averaging and the evaluation are those of ``coterie simulate``, without
messages, ledgers and files, and only the last round is evaluated.
``tests/benchmarks/test_rounds.py`` holds the two against each other, bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
from flwr.app import RecordDict

from client_app.simulated_sites import simulated_federation
from client_app.site import Site
from client_app.site_state import ContextKeeper
from client_app.training import engine
from client_app.training.engine import Lesson
from client_app.training.loop import Evaluation
from common import models
from common.config import Settings
from common.data.datasets import Dataset
from common.messages import Order, Parameters
from common.objectives import USUAL, Fitted, Phase, Pull, objective_of
from common.privacy.book import Budget
from common.splits import SiteRows
from server_app.rounds.divergence import weight_divergences
from server_app.rounds.routing import average


@dataclass(frozen=True)
class Outcome:
    """What a training gave."""

    evaluations: dict[str, Evaluation]
    """By site, on its held-out rows, of the model it uses after the last round."""
    divergence: float | None
    """Mean over rounds and sites; None where no model is shared."""
    common: Parameters
    """The model of all sites; the first one where none is shared."""


@dataclass(frozen=True)
class Federation:
    """Sites and the first model, which runs of the same data and seed have in common."""

    dataset: Dataset
    parts: Sequence[SiteRows]
    first: Parameters

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the federation that ``coterie simulate`` would make."""
        dataset, parts = simulated_federation(settings)
        shape, classes = dataset.input_shape, dataset.num_classes
        return cls(dataset, parts, models.initial_parameters(settings, shape, classes))

    def trained(self, settings: Settings) -> Outcome:
        """Return what every site has after ``num-server-rounds`` with all of them."""
        objective = objective_of(settings)
        sites = [self._site(part, settings) for part in self.parts]
        rows = np.array([float(len(site.rows.train)) for site in sites])
        common, own = self.first, [None] * len(sites)
        divergences: list[float] = []
        for number in range(1, settings.num_server_rounds + 1):
            order = Order(number, attempt=1, model=0)
            learned = [
                objective.learn(common, mine, partial(_fit, site, order), settings)
                for mine, site in zip(own, sites, strict=True)
            ]
            own = [each.personal for each in learned]
            if objective.shares_model:
                sent = [each.shared for each in learned]
                common = objective.step(common, average(sent, rows), settings)
                divergences += weight_divergences(sent, common) or []
        used = [common if mine is None else mine for mine in own]
        found = {
            site.name: engine.evaluate(model, [site])[0]
            for site, model in zip(sites, used, strict=True)
        }
        return Outcome(found, float(np.mean(divergences)) if divergences else None, common)

    def _site(self, part: SiteRows, settings: Settings) -> Site:
        keeper = ContextKeeper(RecordDict())
        return Site(part.name, settings, self.dataset, part, (), keeper, Budget())


def _fit(
    site: Site, order: Order, start: Parameters, pull: Pull | None = None, phase: Phase = USUAL
) -> Fitted:
    return engine.fit(start, Lesson.of(site, order), site.settings, pull, phase)
