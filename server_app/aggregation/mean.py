"""Mean of a round's updates: what they make of the models."""

from collections.abc import Callable, Sequence

import numpy as np

from common.messages import Parameters, TrainReport
from server_app.record.ledger import Trained
from server_app.rounds.divergence import weight_divergences
from server_app.rounds.exchange import Answer
from server_app.rounds.routing import average

Models = list[dict[str, np.ndarray]]
Update = tuple[Answer[Trained], TrainReport, dict[str, np.ndarray]]


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


def flat(parameters: Parameters) -> np.ndarray:
    """Return all entries of a model, (parameters,) float32."""
    return np.concatenate([value.ravel() for value in parameters.values()], dtype=np.float32)


def with_latest(
    known: np.ndarray, updates: Sequence[Update], models: Models, num_clients: int
) -> np.ndarray:
    """Return what each client's last training added to its model, (n, parameters) float32.

    Args:
        known: the same before these updates, perhaps of fewer clients; newcomers' rows are 0.
        updates: of some clients.
        models: that were sent.
        num_clients: n.
    """
    shape = num_clients, sum(value.size for value in models[0].values())
    if known.shape != shape:
        grown = np.zeros(shape, dtype=np.float32)
        grown[: len(known), : known.shape[1]] = known
        known = grown
    for answer, _, trained in updates:
        known[answer.client] = flat(trained) - flat(models[answer.model])
    return known


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
