"""Memory of the sites: what is known of each from the rounds before."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common.config import Settings
from common.messages import EvaluateReport, Parameters
from server_app.rounds.attempt import Update
from server_app.rounds.turns import Turns
from server_app.rounds.update_norms import UpdateNorms


class Memory:
    """Each client's turns and last score; where they are told, its last update and losses.

    Args:
        settings: of the run.
    """

    def __init__(self, settings: Settings) -> None:
        self.norms = UpdateNorms.of(settings)
        """Of all updates."""
        self._updates = np.empty((0, 0), dtype=np.float32)
        self._scores: dict[int, float] = {}
        self._losses = np.empty((0, 3))
        self.turns = Turns()

    def scores(self, num_clients: int) -> np.ndarray:
        """Return the last score of each client, (n,); NaN: none yet."""
        return np.array([self._scores.get(client, np.nan) for client in range(num_clients)])

    def evaluated(self, client: int, report: EvaluateReport) -> None:
        """Remember what a client's evaluation said."""
        self._scores[client] = report.score

    def losses(self, num_clients: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what each client last told of a model that it was to train, (n,) each.

        Its mean loss and the root of its mean square, and in which round; NaN and 0: it was never
        to train, and 0, 0 with a round: it never told anything usable.
        """
        self._make_room(num_clients)
        losses, rms_losses, rounds = self._losses.T.copy()
        return losses, rms_losses, rounds.astype(np.int64)

    def told(self, client: int, loss: float, rms_loss: float, server_round: int) -> None:
        """Remember how the model that a client was to train did on its training rows."""
        self._make_room(client + 1)
        self._losses[client] = loss, rms_loss, server_round

    def told_nothing(self, client: int, server_round: int) -> None:
        """Remember that a client told nothing usable: what is known of it stays, if only 0.

        Or a site that always fails would be drawn again and again as one that is not known yet.
        """
        self._make_room(client + 1)
        known = np.nan_to_num(self._losses[client, :2])
        self._losses[client] = *known, server_round

    def _make_room(self, num_clients: int) -> None:
        more = max(0, num_clients - len(self._losses))
        self._losses = np.vstack([self._losses, np.tile([np.nan, np.nan, 0.0], (more, 1))])

    def trained(
        self, updates: Sequence[Update], models: Sequence[Parameters], num_clients: int
    ) -> np.ndarray:
        """Remember what some clients trained from the models that they were sent.

        Returns what each client's last training added, (n, parameters) float32; 0: none yet.
        """
        self._updates = with_latest(self._updates, updates, models, num_clients)
        return self._updates

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        scores = {str(client): value for client, value in self._scores.items()}
        return {
            "updates": self._updates,
            "scores": scores,
            "losses": self._losses,
            "turns": self.turns.state(),
            "update-norms": self.norms.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self._updates = state["updates"]
        self._scores = {int(client): value for client, value in state["scores"].items()}
        self._losses = state.get("losses", self._losses)  # as the turns
        if "turns" in state:  # a version that counted none had no rule that looks at them
            self.turns.restore(state["turns"])
        self.norms.restore(state.get("update-norms", ()))  # runs of old versions have none


def with_latest(
    known: np.ndarray, updates: Sequence[Update], models: Sequence[Parameters], num_clients: int
) -> np.ndarray:
    """Return what each client's last training added to its model, (n, parameters) float32.

    Of floating point arrays: counters are no parameters.

    Args:
        known: the same before these updates, perhaps of fewer clients; newcomers' rows are 0.
        updates: of some clients.
        models: that were sent.
        num_clients: n.
    """
    shape = num_clients, flat(models[0]).size
    if known.shape != shape:
        grown = np.zeros(shape, dtype=np.float32)
        grown[: len(known), : known.shape[1]] = known
        known = grown
    for answer, _, trained in updates:
        known[answer.client] = flat(trained) - flat(models[answer.model])
    return known


def flat(parameters: Parameters) -> np.ndarray:
    """Return all entries of a model's floating point arrays, (parameters,) float32."""
    floats = [value.ravel() for value in parameters.values() if value.dtype.kind == "f"]
    return np.concatenate(floats, dtype=np.float32)
