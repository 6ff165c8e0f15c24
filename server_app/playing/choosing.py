"""Choosing: what a selection is shown of the sites, and the cohort that it draws."""

from typing import Any

import numpy as np

from server_app.clustering.clusters import Clusters
from server_app.rounds.memory import Memory
from server_app.rounds.roster import Roster
from server_app.rounds.turns import Turns
from server_app.selection.rules import Cohort, Selection, View

__all__ = ["drawn", "view_of"]


def view_of(
    number: int, roster: Roster, available: np.ndarray, clusters: Clusters, memory: Memory
) -> View:
    """Return what is known of the sites without asking anybody.

    Args:
        number: the round, from 1.
        roster: the sites.
        available: (n,) bool: who is there; ``memory`` has seen them.
        clusters: of the sites.
        memory: of them.
    """
    return View(
        round=number,
        available=available,
        num_examples=roster.num_examples,
        clusters=clusters,
        scores=memory.scores_of(len(roster)),
        turns=memory.turns.counts,
        num_classes=roster.sites[0].num_classes,
    )


def drawn(
    select: Selection, learnt: Any, view: View, turns: Turns, rng: np.random.Generator
) -> tuple[Cohort, Any, Turns]:
    """Return a round's cohort, what the rule has learnt then, and the turns with it."""
    cohort, learnt = select.update(learnt, view, rng)
    return cohort, learnt, turns.took(cohort.clients)
