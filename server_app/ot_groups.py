"""Sites grouped by what it would cost to carry one's data onto another's: Elhussein & Gürsoy."""

from collections.abc import Mapping
from dataclasses import dataclass

from common.config import Settings
from common.messages import MOST_ROWS_SEEN
from server_app.ot_settings import VARIANTS, OtSettings
from server_app.verdicts import Thresholds

__all__ = ["RELEASED", "OtGroups", "by_cost"]

RELEASED: Mapping[str, tuple[str, ...]] = {"clear": ("representations",)}
"""What every site must release for each kind of evidence; ``ot_inquiry.GATHER`` says how it is
asked for."""


@dataclass(frozen=True)
class OtGroups:
    """Sites grouped after round 1, by the OT cost of every pair."""

    costs: OtSettings
    thresholds: Thresholds
    num_clusters: int
    """0: groups merge up to the detrimental threshold."""
    evidence: str = "clear"
    """What the costs are computed from: a name of :data:`RELEASED`."""

    @property
    def releases(self) -> tuple[str, ...]:
        """What every site must release."""
        return RELEASED[self.evidence]


def by_cost(settings: Settings) -> OtGroups:
    """Return the grouping that the settings describe.

    Raises:
        ConfigError: an unknown variant, weights or thresholds that cannot be used.
    """
    costs = OtSettings(
        variant=settings.ot_variant,
        feature_weight=_own_unless(settings.ot_feature_weight),
        label_weight=_own_unless(settings.ot_label_weight),
        min_rows=settings.min_rows,
        max_rows=MOST_ROWS_SEEN,
    )
    own = VARIANTS[costs.variant].thresholds
    thresholds = Thresholds(
        settings.ot_beneficial or own.beneficial, settings.ot_detrimental or own.detrimental
    )
    return OtGroups(costs, thresholds, settings.num_clusters)


def _own_unless(weight: float) -> float | None:
    return None if weight == -1 else weight
