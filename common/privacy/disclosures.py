"""Disclosures: what a run asks of sites that they release only where their owner names it."""

from collections.abc import Mapping

from common.config import Settings
from common.messages import DISCLOSURES

__all__ = ["FOR_COSTS", "asked"]

FOR_COSTS: Mapping[str, tuple[str, ...]] = {
    "clear": ("representations",),
    "two-party": ("class-statistics", "representation-products"),
}
"""What every site must release for each kind of evidence of OT costs."""


def asked(settings: Settings) -> tuple[str, ...]:
    """Return what of ``messages.DISCLOSURES`` the run needs, in their order.

    In a simulation the one who sets the run up owns all sites, so they release it.
    """
    needed = {"probe-rows"} if settings.cka_probe == "client-rows" else set()
    if settings.strategy == "ot-groups":
        needed.update(FOR_COSTS["two-party" if settings.two_party else "clear"])
    return tuple(name for name in DISCLOSURES if name in needed)
