"""Choices: what is said where a site takes one of several models."""

from dataclasses import dataclass

from flwr.app import MessageType

from common.messages.declared import check_rows, check_training
from common.messages.kind import Asked, Kind, Reply, Word, check_order
from common.messages.records import MOST_SECONDS, Record, TrainReport, check_range
from common.messages.releases import released

__all__ = ["CHOOSE", "KINDS", "TRAIN_CHOICE", "ChoiceOrder", "ChoiceReport"]

CHOOSE = f"{MessageType.QUERY}.choose"
TRAIN_CHOICE = f"{MessageType.TRAIN}.of_choice"

_MOST_MODELS = 10_000


@dataclass(frozen=True)
class ChoiceOrder(Record):
    """What the server asks with several models: to choose one, and perhaps to train that."""

    round: int
    """From 1."""
    attempt: int
    models: int
    """How many were sent, numbered from 0."""

    def __post_init__(self) -> None:
        """Refuse a choice among none."""
        check_range("models", self.models, 1, _MOST_MODELS)


@dataclass(frozen=True)
class ChoiceReport(Record):
    """A site's answer to ``query.choose``."""

    site: str
    round: int
    attempt: int
    model: int
    """Number of the model of the smallest mean loss on its training rows."""
    num_examples: int
    """Training rows."""
    seconds: float

    def __post_init__(self) -> None:
        """Refuse a time that nothing takes."""
        check_range("seconds", self.seconds, 0, MOST_SECONDS)


def _choice(reply: Reply, asked: Asked) -> None:
    check_order(reply, asked, model=False)
    check_rows(reply, asked.site.num_examples)


def _training(reply: Reply, asked: Asked) -> None:
    check_training(reply, asked, model=False)


_CHOSEN = {"model-choice": Word("which of several models fits each site")}

KINDS = (
    Kind(
        CHOOSE,
        asks=(ChoiceOrder,),
        answers=(ChoiceReport,),
        releases=released("model-choice"),
        words="which of several models fits best",
        inspect=_choice,
        chooses=True,
        shows=_CHOSEN,
    ),
    Kind(
        TRAIN_CHOICE,
        asks=(ChoiceOrder,),
        answers=(TrainReport,),
        releases=released("model-choice", "model"),
        words="which of several models fits best, trained, rows, training loss",
        inspect=_training,
        arrays=True,
        chooses=True,
        phase="train",
        shows=_CHOSEN,
    ),
)
