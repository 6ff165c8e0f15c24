"""Grouping: the promise that everything keeps that groups the sites of a run."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a strategy needs Flower, and a method is named and checked without it
    from server_app.strategies.base import FederatedTraining

__all__ = ["Grouping"]


class Grouping(Protocol):
    """How a method groups the sites; groupings inherit from this class.

    Whoever composes a method or runs it asks these questions and never which kind it is.
    """

    @property
    def needs(self) -> frozenset[str]:
        """What the server must see of single sites: of ``protection.catalogue.WORDS``."""
        ...

    @property
    def needs_classes(self) -> str:
        """What it compares that only rows of classes have, in words; empty: masks will do."""
        return ""

    def strategy(self) -> "type[FederatedTraining]":
        """Return who plays the rounds: a strategy that knows this kind of grouping."""
        ...
