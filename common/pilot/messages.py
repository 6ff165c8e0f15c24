"""Messages of the pilot: a round of training on all folds, and a look at what came of it.

The shared models of every candidate and fold travel together: candidate s's model for fold k is
number s * folds + k.
"""

from dataclasses import dataclass

from flwr.app import MessageType

from common.errors import MessageError
from common.messages import MOST_SECONDS, Record, check_range

__all__ = ["DITTO", "FEDAVG", "LOCAL", "PILOT_LOOK", "PILOT_TRAIN", "PilotLook", "PilotOrder"]
__all__ += ["PilotTrained"]

PILOT_TRAIN = f"{MessageType.TRAIN}.pilot_round"
PILOT_LOOK = f"{MessageType.QUERY}.pilot_look"

LOCAL, DITTO, FEDAVG = "local", "ditto", "fedavg"
"""Names of candidates; the others are groupings."""

_MOST_ROUNDS = 10_000


@dataclass(frozen=True)
class PilotOrder(Record):
    """What the server asks with models: to train them on, or to judge them."""

    round: int
    """From 1; of a look, the last one played."""
    folds: int
    shared: list[str]
    """Candidates whose models are in the message, FedAvg the first."""
    full: int
    """Rounds that a site's own models are trained for."""

    def __post_init__(self) -> None:
        """Refuse an order that no pilot gives."""
        check_range("round", self.round, 1, _MOST_ROUNDS)
        check_range("full", self.full, 1, _MOST_ROUNDS)
        check_range("folds", self.folds, 2, 20)
        if self.shared[:1] != [FEDAVG] or len(set(self.shared)) < len(self.shared):
            raise MessageError(f"shared = {self.shared}: must begin with {FEDAVG!r}, each once")

    @property
    def models(self) -> int:
        """How many models are in the message."""
        return len(self.shared) * self.folds


@dataclass(frozen=True)
class PilotTrained(Record):
    """A site's account of a round, beside the models that it trained on."""

    site: str
    round: int
    examples: list[int]
    """Training rows in each fold."""
    values: list[float]
    """Share of the rows held out that each shared candidate's models, as received, got right; 0
    where none is held out."""
    held_out: int
    """Rows of all folds that were held out."""
    seconds: float

    def __post_init__(self) -> None:
        """Refuse what no site can have found."""
        check_range("seconds", self.seconds, 0, MOST_SECONDS)
        for value in self.values:
            check_range("values", value, 0, 1)


@dataclass(frozen=True)
class PilotLook(Record):
    """How the candidates did on a site's rows, each held out once."""

    site: str
    round: int
    candidates: list[str]
    metric: str
    """``accuracy`` or ``balanced-accuracy``."""
    held_out: int
    """Rows; 0: the lists below are empty."""
    units: int
    """Of rows that belong together."""
    values: list[float]
    """Of the metric, by candidate."""
    covariance: list[float]
    """Of their errors, row after row."""
    floor: float
    """See :class:`common.pilot.outcomes.Outcomes`."""
    accuracies: list[float]
    """By candidate, whatever the metric is."""
    seconds: float

    def __post_init__(self) -> None:
        """Refuse what no site can have found."""
        check_range("seconds", self.seconds, 0, MOST_SECONDS)
        number = len(self.candidates) if self.held_out else 0
        lengths = [len(self.values), len(self.accuracies)]
        if lengths != [number] * 2 or len(self.covariance) != number**2:
            raise MessageError(f"{lengths} figures of {number} candidates")
        for value in (*self.values, *self.accuracies):
            check_range("values", value, 0, 1)
        for value in self.covariance:
            check_range("covariance", value, -1, 1)
        if self.held_out:
            check_range("floor", self.floor, 1e-24, 1)
