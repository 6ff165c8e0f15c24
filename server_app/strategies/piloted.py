"""Piloted training: rounds of FedAvg, and after them the pilot."""

from flwr.serverapp import Grid

from common.config import Settings
from server_app.methods import Method
from server_app.pilot.after_costs import play_alone
from server_app.pilot.alike_models import AlikeModels
from server_app.record.checkpoint import State
from server_app.record.run_folder import RunFolder
from server_app.rounds.attempt import Attempt
from server_app.rounds.roster import Roster
from server_app.strategies.base import FederatedTraining


class BeforePilot(FederatedTraining):
    """Keeps of round 1 what a pilot may ask for after the last: the groups of its models."""

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        self.alike = AlikeModels(settings)

    def state(self) -> State:
        """Return the groups, too."""
        return {**super().state(), **self.alike.state()}

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on with them."""
        self.alike.restore(state)
        super().restore(state, grid, timeout)

    def before_average(self, attempt: Attempt) -> None:
        """Group the sites by the models of round 1."""
        self.alike.see(attempt)


class PilotedTraining(FederatedTraining):
    """Asks no site for representations or histograms; with one round it is a precheck, too."""

    def after_training(self, grid: Grid, timeout: float) -> None:
        """Play the pilot, and write what it says."""
        play_alone(self.settings, self.federation(grid, timeout), self.folder)
