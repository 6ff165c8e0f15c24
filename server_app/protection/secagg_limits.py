"""Limits of secure sums: methods and cohorts that are refused before the first message."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from common.config import Settings
from common.errors import ConfigError, RoundError
from common.objectives import objective_of
from common.privacy.update_privacy import changed_at_site
from common.privacy.updates import MOST_NOISE, UpdateNoise
from common.secagg.agreement import capped
from common.secagg.fixed_point import Scale
from common.secagg.neighbours import SMALLEST_THRESHOLD
from server_app.selection.rules import Cohort, Selection

__all__ = ["capped", "check", "check_groups", "fewest", "scale_of", "whole_weights"]

_FINEST_WEIGHT = 10**6
_DEVIATIONS = 10  # that no draw of a Gaussian exceeds: the chance is below 1e-22


def fewest(settings: Settings) -> int:
    """Return how many sites each model must be averaged over at least."""
    return max(SMALLEST_THRESHOLD, settings.secagg_min_cohort)


def check(settings: Settings, select: Selection, *, model_per_cluster: bool) -> None:
    """Raise :class:`ConfigError` if secure sums would have nothing to add up, or too few parts.

    What a method must see beside averages is ``catalogue.check``'s to refuse.

    Args:
        settings: of the run.
        select: who trains.
        model_per_cluster: whether each cluster has a model of its own.
    """
    if not settings.secagg:
        return
    if not objective_of(settings).shares_model:
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
    least, size, k = fewest(settings), settings.clients_per_round, settings.num_clusters or 0
    if 0 < settings.num_clients < least:
        return f"num-clients = {settings.num_clients}: an average needs at least {least} sites"
    of_each = select.of_each_cluster(k)
    if of_each is not None and not size:
        return _too_few_of_each(of_each, k, least, model_per_cluster)
    needed = least * max(k, 1) if model_per_cluster and of_each is not None else least
    if size and size < needed:
        return f"clients-per-round = {size}: must be at least {needed}, {least} for each model"
    return None


def _too_few_of_each(of_each: int, k: int, least: int, model_per_cluster: bool) -> str | None:
    """Return why so many of each of k clusters (0: not known yet) are too few, if they are."""
    sites, train = ("one site", "trains") if of_each == 1 else (f"{of_each} sites", "train")
    if model_per_cluster and of_each < least:
        return (
            f"{sites} per cluster {train} each model, and an average over {sites} hides nothing; "
            f"set clients-per-round to at least {least} for every cluster, or selection=all"
        )
    if 0 < k * of_each < least:
        return (
            f"num-clusters = {k} and {sites} of each {train}, where an average "
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
            "set a smaller num-clusters"
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


def scale_of(weights: Sequence[int], settings: Settings) -> Scale:
    """Return what the vectors of a cohort are scaled to, whose weights are public.

    How far an entry of a model may move follows from the clip where sites clip and add noise. What
    an update privacy from elsewhere does to it is not known: then every entry is wide.
    """
    change = settings.secagg_range
    if settings.update_privacy == "local-dp":
        noise = UpdateNoise.of(settings)
        change = noise.clip + _DEVIATIONS * MOST_NOISE * noise.sigma
    elif changed_at_site(settings):
        change = math.inf
    bits = settings.secagg_fraction_bits
    return Scale.holding(change, bits, len(weights), max(weights), sum(weights))
