"""Numbered models: a model number for each site, where a model may be left without sites.

:class:`~server_app.clustering.clusters.Clusters` knows no empty ones. A model that nobody trains in
a round is idle: it stays as it is bit for bit, and that is said.
"""

import math
from collections.abc import Mapping

import numpy as np

from server_app.clustering.clusters import Clusters
from server_app.groupings.grouping import NO_MODEL, Asking, Grouped, Models, Written
from server_app.record.clusters_format import ClustersFile

__all__ = ["renumbered"]


def renumbered(asking: Asking, numbers: Mapping[int, int], models: Models | None = None) -> Grouped:
    """Return the grouping in which some clients have these models from now on.

    Args:
        asking: of now.
        numbers: client -> model.
        models: in place of those that there are.
    """
    before, routes = asking.routes, asking.routes.copy()
    clients = list(numbers)
    routes[clients] = list(numbers.values())
    drift = asking.drift
    if (before[clients] != NO_MODEL).any():
        known = before != NO_MODEL
        drift = float(np.mean(before[known] != routes[known]))
    sites = zip(asking.roster.names, routes.tolist(), strict=True)
    record = ClustersFile(
        round=asking.round,
        strategy=asking.settings.strategy,
        num_clusters=len(asking.models if models is None else models),
        chosen_by="num-clusters",
        drift=math.nan if drift is None else drift,
        sites={name: number for name, number in sites if number != NO_MODEL},
    )
    return Grouped(
        Clusters.from_labels(routes),
        known=(),
        drift=drift,
        written=Written((record,)),
        routes=routes,
        models=models,
    )
