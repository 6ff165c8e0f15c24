"""Shrinkage: what sites' changes have in common, and what each one's is worth beside that.

The largest of several noisy figures is too large (the winner's curse). Morris 1983, "Parametric
Empirical Bayes Inference: Theory and Applications", section on unequal variances: a site's change
moves towards the federation's mean by the share of its variance that is noise. With three sites or
fewer their spread cannot be told from their noise, and each keeps its own figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.pilot.outcomes import Change

__all__ = ["FEWEST", "AllSites", "Z", "interval", "over_sites", "shrunk"]

Z = 1.6448536269514722
"""Standard errors on each side of a 90 % interval."""

FEWEST = 4
"""Sites for shrinkage: it gains from here on (James & Stein)."""


@dataclass(frozen=True)
class AllSites:
    """What the sites' changes have in common; made of sums over sites alone.

    Attributes:
        sites: how many.
        mean: of their changes, weighted by how sure they are, in points.
        error: of the mean, > 0.
        spread: standard deviation of the true changes over sites, >= 0.
        noise: mean variance of the sites' own errors, by the same weights.
    """

    sites: int
    mean: float
    error: float
    spread: float
    noise: float


def over_sites(changes: Sequence[Change]) -> AllSites:
    """Return mean and spread of at least one site's changes, none without an error.

    The spread is DerSimonian & Laird's (1986): it makes the weighted sum of squares what it is
    expected to be, and is 0 where noise explains all of that.

    >>> three = [Change(1.0, 1.0), Change(2.0, 1.0), Change(6.0, 1.0)]
    >>> found = over_sites(three)
    >>> found.mean, round(found.spread**2, 9), round(found.error**2, 9)  # 7 is their variance
    (3.0, 6.0, 2.333333333)
    """
    y = np.array([each.change for each in changes])
    v = np.array([each.error for each in changes]) ** 2
    assert (v > 0).all()
    w = 1 / v
    q = (w * y**2).sum() - (w * y).sum() ** 2 / w.sum()
    scale = w.sum() - (w**2).sum() / w.sum()
    spread = max(0.0, float((q - (len(y) - 1)) / scale)) if len(y) > 1 else 0.0
    w = 1 / (v + spread)
    mean, noise = (float((w * each).sum() / w.sum()) for each in (y, v))
    return AllSites(len(y), mean, float(w.sum() ** -0.5), float(np.sqrt(spread)), noise)


def shrunk(own: Change, of: AllSites) -> Change:
    """Return a site's change as its federation makes it: nearer to the mean, and surer.

    Args:
        own: what the site measured.
        of: all sites, this one among them.
    """
    k = of.sites
    if k < FEWEST:
        return own
    variance, total = own.error**2, own.error**2 + of.spread**2
    b = (k - 3) / (k - 1) * variance / total
    change = (1 - b) * own.change + b * of.mean
    # k W_i / sum W is how much of the mean this site is; (k - 1) / k of b is lost where all are
    # alike. v is for the spread being an estimate.
    own_part = of.error**2 / total
    v = 2 / (k - 3) * b**2 * (of.noise + of.spread**2) / total
    error = np.sqrt((1 - b * (1 - own_part)) * variance + v * (own.change - of.mean) ** 2)
    return Change(float(change), float(error))


def interval(of: Change) -> tuple[float, float]:
    """Return a change's 90 % interval, in points, of which there are 100 each way."""
    return max(of.change - Z * of.error, -100.0), min(of.change + Z * of.error, 100.0)
