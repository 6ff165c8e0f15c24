"""Verdict: what a site is told about training together, and how a change decides it."""

from enum import StrEnum

from common.pilot.outcomes import Change
from common.pilot.shrinkage import interval

__all__ = ["Verdict", "judge"]


class Verdict(StrEnum):
    """What a change or a cost says about training together."""

    BENEFICIAL = "beneficial"
    UNCERTAIN = "uncertain"
    DETRIMENTAL = "detrimental"
    NOTHING = "nothing to compare"
    """No class of which both have enough rows."""


def judge(change: Change) -> Verdict:
    """Return what a change's 90 % interval says.

    >>> [str(judge(Change(y, 1.0))) for y in (2.0, 1.0, -2.0)]
    ['beneficial', 'uncertain', 'detrimental']
    """
    low, high = interval(change)
    if low > 0:
        return Verdict.BENEFICIAL
    return Verdict.DETRIMENTAL if high < 0 else Verdict.UNCERTAIN
