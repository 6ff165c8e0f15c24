"""Noisy costs: what the OT cost of a pair can be, when class statistics have noise."""

from collections.abc import Mapping
from dataclasses import replace

from common.privacy.statistics import NoisyMoments
from server_app.transport.class_cost import ClassView
from server_app.transport.evidence import SiteView
from server_app.transport.noisy_gaussians import noisy_label_bounds
from server_app.transport.pair_costs import OtCost
from server_app.transport.variants import OtSettings

__all__ = ["cost_bounds"]


def cost_bounds(
    pair: OtCost, first: SiteView, second: SiteView, settings: OtSettings
) -> tuple[float, float] | None:
    """Return the least and the largest cost that the noise leaves plausible.

    None where there is nothing to compare. Without noise both are the pair's cost.

    Args:
        pair: the cost, whose feature costs are as they are.
        first: the pair's first site.
        second: its second.
        settings: how costs are computed.
    """
    if not pair.per_class:
        return None
    bounds = {
        label: _bounds(first.classes[label], second.classes[label], each.label_cost)
        for label, each in pair.per_class.items()
    }
    low, high = (_total(pair, {k: b[end] for k, b in bounds.items()}, settings) for end in (0, 1))
    return low, high


def _bounds(first: ClassView, second: ClassView, exact: float) -> tuple[float, float]:
    one, other = first.description, second.description
    if isinstance(one, NoisyMoments) and isinstance(other, NoisyMoments):
        return noisy_label_bounds(one, other)
    return exact, exact


def _total(pair: OtCost, label_costs: Mapping[int, float], settings: OtSettings) -> float:
    feature_weight, label_weight = settings.weights
    weights = feature_weight + label_weight
    classes = {
        label: replace(
            each,
            label_cost=label_costs[label],
            cost=(feature_weight * each.feature_cost + label_weight * label_costs[label]) / weights,
        )
        for label, each in pair.per_class.items()
    }
    total = replace(pair, per_class=classes).total
    assert total is not None
    return total
