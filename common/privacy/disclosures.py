"""Disclosures: what a run asks of sites that they release only where their owner names it."""

from collections.abc import Mapping

from pydantic import Field

from common import plugins
from common.config import Settings
from common.messages import DISCLOSURES
from common.plugins import PieceSettings

__all__ = ["FOR_COSTS", "RowSettings", "asked"]

FOR_COSTS: Mapping[str, tuple[str, ...]] = {
    "clear": ("representations",),
    "two-party": ("class-statistics", "representation-products"),
}
"""What every site must release for each kind of evidence of OT costs."""


class RowSettings(PieceSettings):
    """Of which classes a site discloses something, as server and sites read it."""

    min_rows: int = Field(
        20, ge=2, description="ot-groups: rows of a class that a site needs for it to be compared"
    )


def asked(settings: Settings) -> tuple[str, ...]:
    """Return what of ``messages.DISCLOSURES`` the run needs, in their order.

    In a simulation the one who sets the run up owns all sites, so they release it.
    """
    used = plugins.used_piece_settings(settings)
    needed = frozenset[str]().union(*(settings.of(each).discloses(settings) for each in used))
    return tuple(name for name in DISCLOSURES if name in needed)
