"""Limits of secure sums: which methods and cohorts can do with them, before the first message."""

import math
from fractions import Fraction

import numpy as np

from common.config import Settings
from common.errors import ConfigError, RoundError
from common.secagg.neighbours import SMALLEST_THRESHOLD
from server_app.selection.rules import Cohort, OnePerCluster, Selection, SpreadOverClusters

__all__ = ["check", "check_groups", "fewest", "whole_weights"]

_FINEST_WEIGHT = 10**6


def fewest(settings: Settings) -> int:
    """Return how many sites each model must be averaged over at least."""
    return max(SMALLEST_THRESHOLD, settings.secagg_min_cohort)


def check(settings: Settings, select: Selection, *, model_per_cluster: bool) -> None:
    """Raise :class:`ConfigError` if secure sums would have nothing to add up, or too few parts.

    What a method must see beside averages is ``protection.check``'s to refuse.

    Args:
        settings: of the run.
        select: who trains.
        model_per_cluster: whether each cluster has a model of its own.
    """
    if not settings.secagg:
        return
    if not settings.shares_model:
        raise ConfigError(
            f"secagg=true: with objective={settings.objective} no model leaves a site; "
            "leave one of them out"
        )
    if settings.update_privacy == "central-dp":
        raise ConfigError(
            "secagg=true: with update-privacy=central-dp the server clips single updates; use "
            "update-privacy=local-dp, or leave one of them out"
        )
    reason = _too_few(settings, select, model_per_cluster)
    if reason:
        raise ConfigError(f"secagg=true: {reason}")


def _too_few(settings: Settings, select: Selection, model_per_cluster: bool) -> str | None:
    least, size = fewest(settings), settings.clients_per_round
    if 0 < settings.num_clients < least:
        return f"num-clients = {settings.num_clients}: an average needs at least {least} sites"
    if model_per_cluster and isinstance(select, OnePerCluster):
        return (
            "one site per cluster trains each model, and an average over one site hides nothing; "
            f"set clients-per-round to at least {least} for every cluster, or selection=all"
        )
    spread = model_per_cluster and isinstance(select, SpreadOverClusters)
    needed = least * max(settings.num_clusters, 1) if spread else least
    if 0 < size < needed:
        return f"clients-per-round = {size}: must be at least {needed}, {least} for each model"
    if isinstance(select, OnePerCluster) and 0 < settings.num_clusters < least:
        return (
            f"num-clusters = {settings.num_clusters} and one site of each trains, where an average "
            f"needs at least {least}; set clients-per-round, or more clusters"
        )
    return None


def check_groups(routes: np.ndarray, settings: Settings) -> None:
    """Raise :class:`RoundError` if a model has too few sites to be averaged over, ever.

    Args:
        routes: (n,) model of each client.
        settings: of the run.
    """
    least = fewest(settings)
    small = {index: size for index, size in enumerate(np.bincount(routes)) if size < least}
    if small:
        index, size = next(iter(small.items()))
        raise RoundError(
            f"secagg=true: model {index} is trained by {size} of the sites, an average needs "
            f"{least}: over one site it hides nothing, over two each could work out the other's; "
            "set a smaller num-clusters, or routing=one-model"
        )


def whole_weights(cohort: Cohort) -> dict[int, int] | None:
    """Return the weights of a cohort as whole numbers in the same ratios; None: by rows.

    Raises:
        RoundError: weights that are not ratios of numbers up to a million.
    """
    if cohort.weights is None:
        return None
    shares = [Fraction(float(w)).limit_denominator(_FINEST_WEIGHT) for w in cohort.weights]
    common = math.lcm(*(share.denominator for share in shares))
    if not np.allclose([float(share) for share in shares], cohort.weights, rtol=1e-9, atol=0):
        raise RoundError("secagg=true: these aggregation weights are not ratios of whole numbers")
    if common > _FINEST_WEIGHT:
        raise RoundError("secagg=true: these aggregation weights have no common measure")
    clients = cohort.clients.tolist()
    return {c: int(share * common) for c, share in zip(clients, shares, strict=True)}
