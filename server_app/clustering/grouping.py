"""Grouping: the promises of what is asked of the sites of a run, and of what groups them."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from common.config import Settings
    from server_app.strategies.base import FederatedTraining

__all__ = ["STRATEGIES", "Description", "Grouping"]

STRATEGIES = __name__.removesuffix("clustering.grouping") + "strategies"
"""The package of the built-in strategies, by its name where this package is installed."""


class Description(Protocol):
    """What a method asks of every site to describe it by; descriptions inherit from this class.

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

    def reads_probabilities(self, settings: "Settings") -> str:
        """Return what it compares that only a model of classes says, in words; empty: nothing."""
        return ""

    @property
    def reads(self) -> frozenset[str]:
        """Which parts of the sites' models the server looks at: of ``common.objectives``."""
        return frozenset()

    played_by: ClassVar[str] = ""
    """Where its strategy stands, as an entry point has it: ``module:class``. A name and no class,
    for strategies need Flower, and know the descriptions that they play."""

    def strategy(self) -> "type[FederatedTraining]":
        """Return who plays the rounds: a strategy that knows this kind of description."""
        kind: type[FederatedTraining] = resolve_name(self.played_by)
        return kind


class Grouping(Description, Protocol):
    """How a method groups the sites by what it asked of them; groupings inherit from this class."""
