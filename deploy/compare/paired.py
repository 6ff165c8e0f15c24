"""Paired differences: what a method gains over the reference, seed by seed.

Runs of one seed share their data, sites and first model, so their difference says more than the
spreads of both. Its interval is Student's, at 95 %; from five pairs on, Wilcoxon's signed-rank test
asks whether the differences lie around 0 without assuming that they are normal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from deploy.compare.columns import Column
from deploy.compare.figures import Row, RunFigures

__all__ = ["COMPARED", "Difference", "difference"]

COMPARED = ("rounds_to_target", "joules_to_target", "held_accuracy", "accuracy", "worst_decile")
"""Columns that are compared, by key."""

_LEVEL = 0.95
_FEWEST_FOR_WILCOXON = 5  # with fewer, no outcome has a p below 0.1


@dataclass(frozen=True)
class Difference:
    """The mean difference of some pairs."""

    mean: float
    """NaN without a pair."""
    low: float
    """Of the interval; NaN with fewer than two pairs."""
    high: float
    p: float
    """Of Wilcoxon's test, two-sided; NaN with fewer than five pairs."""
    pairs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the figures of differences (n,), n >= 0.

        >>> found = Difference.of([1.0, 2.0, 3.0])
        >>> found.mean, round(found.low, 3), round(found.high, 3), found.p
        (2.0, -0.484, 4.484, nan)
        """
        from scipy import stats  # a second to load, and most commands compare nothing

        known = np.asarray(values, dtype=np.float64)
        low = high = p = math.nan
        if len(known) > 1:
            half = stats.t.ppf((1 + _LEVEL) / 2, len(known) - 1) * stats.sem(known)
            low, high = known.mean() - half, known.mean() + half
        if len(known) >= _FEWEST_FOR_WILCOXON:
            p = float(stats.wilcoxon(known).pvalue) if known.any() else 1.0
        mean = float(known.mean()) if len(known) else math.nan
        return cls(mean, float(low), float(high), p, len(known))

    def text(self, digits: int) -> str:
        """Return it as a table's cell."""
        if not self.pairs:
            return "-"
        words = f"{self.mean:+.{digits}f}"
        if self.pairs > 1:
            words += f" [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"
        return words if math.isnan(self.p) else f"{words} p {self.p:.2g}"


def difference(row: Row, column: Column, against: Sequence[RunFigures] = ()) -> Difference:
    """Return by how much a row's runs lie above others, over the seeds that both have.

    Args:
        row: the runs; its reference sets the budgets of both sides.
        column: the figure. One in joules is compared between runs of one processor alone.
        against: the others; none: the reference's runs.
    """

    def of(run: RunFigures) -> float:
        return column.of(replace(row, runs=(run,))).mean

    others = {run.case.settings.seed: run for run in against or row.reference}
    pairs = [(run, others[seed]) for run in row.runs if (seed := run.case.settings.seed) in others]
    values = [
        of(run) - of(other) for run, other in pairs if run.cpu == other.cpu or not column.in_joules
    ]
    return Difference.of([value for value in values if not math.isnan(value)])
