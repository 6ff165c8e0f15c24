"""OT groups: by what it would cost to carry one site's data onto another's: Elhussein & Gürsoy."""

from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field

from common.config import Settings
from common.errors import ConfigError
from common.messages import MOST_ROWS_SEEN
from common.plugins import PieceSettings
from common.privacy.disclosures import FOR_COSTS, RowSettings
from server_app.clustering.grouping import STRATEGIES, Grouping
from server_app.transport.variants import VARIANTS, OtSettings
from server_app.transport.verdicts import Thresholds

__all__ = ["OtGroups", "OtGroupsSettings", "by_cost"]


class OtGroupsSettings(PieceSettings):
    """How costs are computed, and from which on two sites fit or do not."""

    ot_variant: str = Field(
        "paper", description="ot-groups: reading of the OT cost: paper, full-covariance or authors"
    )
    ot_feature_weight: float = Field(
        -1, ge=-1, description="ot-groups: weight of the feature cost; -1: the variant's own"
    )
    ot_label_weight: float = Field(
        -1, ge=-1, description="ot-groups: weight of the label cost; -1: the variant's own"
    )
    ot_beneficial: float = Field(
        0, ge=0, le=1, description="ot-groups: cost up to which data fit; 0: the variant's own"
    )
    ot_detrimental: float = Field(
        0, ge=0, le=1, description="ot-groups: cost from which they do not; 0: the variant's own"
    )

    def discloses(self, settings: Settings) -> frozenset[str]:
        """Return what costs are computed from."""
        return frozenset(FOR_COSTS["two-party" if settings.two_party else "clear"])


@dataclass(frozen=True)
class OtGroups(Grouping):
    """Sites grouped after round 1, by the OT cost of every pair."""

    costs: OtSettings
    thresholds: Thresholds
    num_clusters: int
    """0: groups merge up to the detrimental threshold."""
    evidence: str = "clear"
    """What the costs are computed from: a name of ``disclosures.FOR_COSTS``;
    ``gathering.GATHER`` says how it is asked for."""
    needs: frozenset[str] = frozenset({"representations"})

    played_by: ClassVar[str] = f"{STRATEGIES}.ot_cost:OtCostGroups"

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
    asked = settings.of(OtGroupsSettings)
    if settings.two_party and asked.ot_variant != "paper":
        raise ConfigError(
            f"ot-variant = {asked.ot_variant!r}: with two-party=true only class statistics in a "
            "public projection are known, as ot-variant=paper takes them; use that"
        )
    costs = OtSettings(
        variant=asked.ot_variant,
        feature_weight=_own_unless(asked.ot_feature_weight),
        label_weight=_own_unless(asked.ot_label_weight),
        min_rows=settings.of(RowSettings).min_rows,
        max_rows=MOST_ROWS_SEEN,
    )
    own = VARIANTS[costs.variant].thresholds
    thresholds = Thresholds(
        asked.ot_beneficial or own.beneficial, asked.ot_detrimental or own.detrimental
    )
    groups = OtGroups(costs, thresholds, settings.num_clusters)
    if not settings.two_party:
        return groups
    seen = "row-products" if settings.reveal == "products" else "row-costs"
    return replace(groups, evidence="two-party", needs=frozenset({"class-statistics", seen}))


def _own_unless(weight: float) -> float | None:
    return None if weight == -1 else weight
