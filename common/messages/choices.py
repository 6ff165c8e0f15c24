"""Choices: what is said where a site takes one of several models."""

from dataclasses import dataclass

from common.messages.records import MOST_SECONDS, Record, check_range

__all__ = ["ChoiceOrder", "ChoiceReport"]

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
