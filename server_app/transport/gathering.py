"""Gathering of evidence: its kinds, and how each is asked for."""

from collections.abc import Callable, Mapping

from common.config import Settings
from common.privacy.disclosures import FOR_COSTS
from server_app.transport.evidence import Evidence
from server_app.transport.inquiry import Inquiry, in_the_clear
from server_app.transport.two_party_evidence import by_products

__all__ = ["GATHER"]

Gather = Callable[[Inquiry, Settings], Evidence]

GATHER: Mapping[str, Gather] = {
    "clear": lambda inquiry, _: in_the_clear(inquiry),
    "two-party": by_products,
}
"""By the name of each kind in ``disclosures.FOR_COSTS``."""

assert GATHER.keys() == FOR_COSTS.keys()
