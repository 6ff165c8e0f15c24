"""Model choice: every site gets all models and trains the one that fits it best."""

import logging
from dataclasses import replace
from itertools import combinations
from typing import TypeVar

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from common import messages
from common.config import Settings
from common.errors import RoundError
from common.messages import ChoiceOrder, Order, Template
from common.sharing import first_shared
from server_app.clustering.ifca import ModelChoice
from server_app.methods import Method
from server_app.protection import secagg_limits
from server_app.record.run_folder import RunFolder
from server_app.rounds import guard
from server_app.rounds.attempt import Attempt, Update
from server_app.rounds.exchange import Answer, Exchange
from server_app.rounds.roster import Roster
from server_app.selection.rules import Cohort
from server_app.strategies.numbered_models import NO_MODEL, NumberedModels

log = logging.getLogger("coterie")

Chosen = TypeVar("Chosen")


class ModelChoices(NumberedModels):
    """k models go down, one comes back with its number: Ghosh et al., Algorithm 1."""

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        assert isinstance(method.group, ModelChoice)
        self._number = method.group.num_models

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Refuse sites that do not tell which model fits them, before round 1."""
        self.roster.require("model-choice", why=f"strategy={self.settings.strategy}")

    def _give_models(self) -> None:
        """Start every model from values of its own: from equal ones all sites share model 0."""
        site = self.roster.sites[0]
        inputs, seed = site.inputs, self.settings.seed
        outputs = self.settings.learning_task.num_outputs(site.num_classes)
        self.models += [
            first_shared(self.settings.replace(seed=seed + j), inputs, outputs)
            for j in range(1, self._number)
        ]
        for one, other in combinations(range(self._number), 2):
            pairs = zip(self.models[one].values(), self.models[other].values(), strict=True)
            if all(np.array_equal(a, b) for a, b in pairs):
                raise RoundError(
                    f"models {one} and {other} start equal, and every site would choose the first "
                    f"for ever: strategy={self.settings.strategy} needs a network whose first "
                    "values depend on the seed"
                )

    def evaluators(self, attempt: Attempt) -> np.ndarray:
        """Return who evaluates; those that have not chosen a model do so first."""
        clients = super().evaluators(attempt)
        undecided = clients[self.numbers[clients] == NO_MODEL]
        if len(undecided):
            self._have_chosen(attempt, undecided)
        decided: np.ndarray = clients[self.numbers[clients] != NO_MODEL]
        return decided

    def before_average(self, attempt: Attempt) -> None:
        """Put each update to the model that its site chose."""
        self.renumber(attempt, {answer.client: answer.model for answer, _, _ in attempt.trained})
        self.note_updates(attempt, np.array([answer.model for answer, _, _ in attempt.trained]))

    def _ask_to_train(
        self, attempt: Attempt, phase: str, clients: np.ndarray, usable: list[Update]
    ) -> list[int]:
        """Have clients choose and train, and add what may count; return whom that was asked."""
        template = Template.of(self.models[0])
        noisy = self.settings.update_privacy == "local-dp"
        answers = attempt.ask(
            self._exchange(attempt, messages.TRAIN_CHOICE, clients),
            lambda reply, asked: guard.training_of_choice(
                reply, template, self._number, may_withhold_loss=noisy, finite=False
            ),
            phase=phase,
            review=lambda answers: self.judged(
                [_of_model(a, a.value[0].model if a.value else a.model) for a in answers]
            ),
        )
        usable += [(answer, *answer.value) for answer in answers if answer.value is not None]
        return [answer.client for answer in answers]

    def _summed(self, attempt: Attempt, cohort: Cohort) -> float | None:
        """Ask for choices first; then a sum for each model that enough of the cohort chose."""
        chosen = self._have_chosen(attempt, cohort.clients)
        counted = self.numbers[chosen]
        enough = np.bincount(counted, minlength=self._number) >= secagg_limits.fewest(self.settings)
        training = chosen[enough[counted]]
        for model in np.flatnonzero(np.bincount(counted, minlength=self._number) * ~enough):
            log.warning("model %d was chosen by too few sites for a sum: it stays idle", model)
        self.note_updates(attempt, self.numbers[training])
        if not len(training):
            return None
        weights = cohort.by_client(len(self.roster))
        left = Cohort(training, None if weights is None else weights[training])
        return self.sum_of_models(attempt, left)

    def _have_chosen(self, attempt: Attempt, clients: np.ndarray) -> np.ndarray:
        """Ask clients which model fits them, and return those that said so, ascending."""
        answers = attempt.ask(
            self._exchange(attempt, messages.CHOOSE, clients),
            lambda reply, asked: guard.choice(reply, self._number),
            review=lambda answers: [_of_model(a, a.value.model if a.value else 0) for a in answers],
        )
        said = {answer.client: answer.model for answer in answers if answer.value is not None}
        self.renumber(attempt, said)
        return np.array(list(said), dtype=np.int64)

    def _exchange(self, attempt: Attempt, kind: str, clients: np.ndarray) -> Exchange:
        """Return the exchange that sends clients all models."""
        order = ChoiceOrder(attempt.round, attempt.attempt, self._number)
        arrays = messages.encode_arrays(messages.together(self.models))
        content: RecordDict = messages.content(order, arrays)
        return Exchange(
            self.roster,
            kind,
            contents=[content],
            orders=[Order(attempt.round, attempt.attempt, model=0)],
            models=dict.fromkeys(map(int, clients), 0),
        )


def _of_model(answer: Answer[Chosen], model: int) -> Answer[Chosen]:
    return replace(answer, model=model)
