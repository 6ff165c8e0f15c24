"""Groups by OT cost: sites whose data are cheap to carry onto each other (Elhussein & Gürsoy)."""

from dataclasses import dataclass, replace

from common.config import Settings
from common.errors import ConfigError
from common.messages import MOST_ROWS_SEEN
from common.privacy.disclosures import FOR_COSTS
from server_app.transport.variants import VARIANTS, OtSettings
from server_app.transport.verdicts import Thresholds

__all__ = ["OtGroups", "by_cost"]


@dataclass(frozen=True)
class OtGroups:
    """Sites grouped after round 1, by the OT cost of every pair."""

    costs: OtSettings
    thresholds: Thresholds
    num_clusters: int
    """0: groups merge up to the detrimental threshold."""
    evidence: str = "clear"
    """What the costs are computed from: a name of ``disclosures.FOR_COSTS``;
    ``gathering.GATHER`` says how it is asked for."""
    sees: frozenset[str] = frozenset({"representations"})
    """What the server must see for it: of ``protection.WORDS``."""

    @property
    def releases(self) -> tuple[str, ...]:
        """What every site must release."""
        return FOR_COSTS[self.evidence]


def by_cost(settings: Settings) -> OtGroups:
    """Return the grouping that the settings describe.

    Raises:
        ConfigError: an unknown variant, weights or thresholds that cannot be used, or another
            variant than ``paper`` without seeing rows.
    """
    if settings.two_party and settings.ot_variant != "paper":
        raise ConfigError(
            f"ot-variant = {settings.ot_variant!r}: with two-party=true only class statistics in a "
            "public projection are known, as ot-variant=paper takes them; use that"
        )
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
    groups = OtGroups(costs, thresholds, settings.num_clusters)
    if not settings.two_party:
        return groups
    seen = "row-products" if settings.reveal == "products" else "row-costs"
    return replace(groups, evidence="two-party", sees=frozenset({"class-statistics", seen}))


def _own_unless(weight: float) -> float | None:
    return None if weight == -1 else weight
