"""Means of updates: what a round makes of the models."""

from collections.abc import Callable, Sequence

import numpy as np

from server_app.rounds.attempt import Update
from server_app.rounds.divergence import weight_divergences
from server_app.rounds.routing import average

Models = list[dict[str, np.ndarray]]


def averaged(
    models: Models,
    updates: Sequence[Update],
    routes: np.ndarray,
    cohort_weights: np.ndarray | None,
    mix: Callable[[dict[str, np.ndarray], dict[str, np.ndarray]], dict[str, np.ndarray]],
) -> Models:
    """Return the models after the updates; one that nobody trained stays as it is.

    Args:
        models: before.
        updates: usable ones.
        routes: (n,) model that each client's update goes into.
        cohort_weights: (n,) weight of each client; None: its number of examples.
        mix: (model before, average) -> model after.
    """
    after = list(models)
    for index, before in enumerate(models):
        mine = [update for update in updates if routes[update[0].client] == index]
        if mine:
            weights = [
                float(report.num_examples if cohort_weights is None else cohort_weights[a.client])
                for a, report, _ in mine
            ]
            trained = average([parameters for _, _, parameters in mine], np.array(weights))
            after[index] = mix(before, trained)
    return after


def divergences(updates: Sequence[Update], models: Models, routes: np.ndarray) -> dict[int, float]:
    """Return each client's distance from the model that its update went into."""
    found: dict[int, float] = {}
    for index, model in enumerate(models):
        mine = [update for update in updates if routes[update[0].client] == index]
        distances = weight_divergences([trained for _, _, trained in mine], model)
        clients = [answer.client for answer, _, _ in mine]
        found |= dict(zip(clients, distances or (), strict=False))
    return found


def regrouped(models: Models, before: np.ndarray, after: np.ndarray, rows: np.ndarray) -> Models:
    """Return a model for each route of ``after``: the mean, by rows, of those its sites had.

    Args:
        models: by the routes of ``before``.
        before: (n,) model that each client had.
        after: (n,) model that each client gets, 0..m-1 without gaps.
        rows: (n,) training rows.
    """
    result = []
    for index in range(int(after.max()) + 1):
        mine = after == index
        held = np.bincount(before[mine], rows[mine], minlength=len(models))
        sources = np.flatnonzero(held)
        result.append(average([models[source] for source in sources], held[sources]))
    return result
