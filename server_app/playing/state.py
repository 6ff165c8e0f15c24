"""State of a run after a round: all that the rounds to come rest on, beside the settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from server_app.aggregation.aggregator import Carried
from server_app.clustering.clusters import Clusters
from server_app.metering.bill import Link
from server_app.playing.contract import Contract
from server_app.playing.fits import ModelFit
from server_app.record.values import tree_of, value_of
from server_app.rounds.memory import Memory
from server_app.rounds.roster import Roster
from server_app.rounds.routing import Models

__all__ = ["RoundState"]

_KINDS: Mapping[str, Any] = {
    "models": list[dict[str, np.ndarray]],
    "clusters": Clusters,
    "numbers": np.ndarray | None,
    "is_grouped": bool,
    "carried": Carried,
    "memory": Memory,
    "seconds": float,
    "fits": list[ModelFit],
}
"""Fields whose class is the same in every run."""


@dataclass(frozen=True)
class RoundState:
    """A run after a round."""

    round: int
    """The last one that was played; 0: none was."""
    roster: Roster
    models: Models
    """By number."""
    clusters: Clusters
    numbers: np.ndarray | None
    """(n,) number of each client's model, where the clusters do not say it."""
    is_grouped: bool
    """Whether the method has grouped the sites."""
    learnt: Any
    """By the selection."""
    carried: Carried
    """By the aggregation."""
    known: Any
    """Of the sites, by what describes or groups them."""
    memory: Memory
    """Of each site, from the rounds before."""
    fits: Sequence[ModelFit] = ()
    """Of the models, where these are fitted from sums over rows; none before round 1."""
    seconds: float = 0.0
    """Wall time of the rounds so far."""
    left_out: tuple[Link, ...] = ()
    """Of sites that the run goes on without, whose messages are billed all the same."""

    @classmethod
    def first(cls, contract: Contract, roster: Roster, models: Models) -> Self:
        """Return that before anybody was asked."""
        return cls(
            round=0,
            roster=roster,
            models=models,
            clusters=Clusters.single(len(roster)),
            numbers=contract.description.first_routes(len(roster)),
            is_grouped=False,
            learnt=contract.method.select.init(),
            carried=contract.aggregator.init(),
            known=contract.description.init(),
            memory=Memory(norms=contract.norms.init()),
        )

    @classmethod
    def of_tree(
        cls, contract: Contract, roster: Roster, server_round: int, tree: Mapping[str, Any]
    ) -> Self:
        """Return what :meth:`tree` was made of.

        Raises:
            DataError: it is of another method.
        """
        select, description = contract.method.select, contract.description
        return cls(
            round=server_round,
            roster=roster,
            learnt=value_of(type(select.init()), tree["learnt"]),
            known=value_of(type(description.init()), tree["known"]),
            **{name: value_of(kind, tree[name]) for name, kind in _KINDS.items()},
        )

    def tree(self, contract: Contract) -> dict[str, Any]:
        """Return what a checkpoint keeps, of which :meth:`of_tree` makes the state again."""
        return {
            "learnt": tree_of(self.learnt),
            "known": tree_of(contract.description.kept(self.known)),
            **{name: tree_of(getattr(self, name)) for name in _KINDS if name != "fits"},
            "fits": [tree_of(fit) for fit in self.fits],
        }

    def routes(self, contract: Contract) -> np.ndarray:
        """Return the number of each client's model, (n,) ints; ``NO_MODEL``: it has none yet."""
        if self.numbers is not None:
            return self.numbers
        return contract.method.route(self.clusters)
