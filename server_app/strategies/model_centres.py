"""Model centres: sites train on from the centre that their last model was nearest to."""

import numpy as np
from flwr.serverapp import Grid

from common import seeds
from common.config import Settings
from server_app.clustering.fesem import ModelCentres, first_centres, nearest_centres
from server_app.methods import Method
from server_app.record.run_folder import RunFolder
from server_app.rounds.attempt import Attempt
from server_app.rounds.memory import flat
from server_app.rounds.roster import Roster
from server_app.strategies.numbered_models import NumberedModels


class NearestCentres(NumberedModels):
    """Everybody trains one model in round 1, of which the first centres are taken: Xie et al.

    From then on, one step of Lloyd's a round: sites go to the nearest centre, which becomes the
    mean of their models. A site that did not train keeps its centre.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        assert isinstance(method.group, ModelCentres)
        self._number = method.group.num_models
        self.numbers = np.zeros(len(roster), dtype=np.int64)

    def _give_models(self) -> None:
        self.models = self.models[:1] * self._number

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Give sites that joined before a round the centre of most sites, to train on from it."""
        known, most = len(self.numbers), int(np.bincount(self.numbers).argmax())
        admitted = super().admit(newcomers, server_round, grid, timeout)
        self.numbers[known:] = most
        return admitted

    def before_average(self, attempt: Attempt) -> None:
        """Put each update to the centre that its model is nearest to."""
        trained = np.array([flat(model) for _, _, model in attempt.trained])
        if attempt.round == 1:
            rng = seeds.generator(self.settings.seed, "clustering")
            chosen = first_centres(trained, self._number, rng)
            self.models = [dict(attempt.trained[place][2]) for place in chosen]
        centres = np.array([flat(model) for model in self.models])
        numbers = nearest_centres(trained, centres)
        clients = [answer.client for answer, _, _ in attempt.trained]
        self.renumber(attempt, dict(zip(clients, numbers.tolist(), strict=True)))
        self.note_updates(attempt, numbers)
