"""Final evaluation's records: what a site is asked and tells of its rows after the last round."""

import math
from dataclasses import dataclass

from common.messages.records import Order, Record, check_range

__all__ = [
    "CALIBRATION",
    "COUNTS",
    "FIGURES_OF_RESAMPLES",
    "FinalReport",
    "ScoreCounts",
    "ThresholdOrder",
]


@dataclass(frozen=True)
class ThresholdOrder(Order):
    """What the server asks with a model after the last round."""

    threshold: float
    """From which probability on a row is said to be of the second class; NaN: nothing is common."""

    def __post_init__(self) -> None:
        """Refuse what is no probability."""
        if not math.isnan(self.threshold):
            check_range("threshold", self.threshold, 0, 1)


@dataclass(frozen=True)
class ScoreCounts(Record):
    """A site's training rows by class and probability of the second, beside the array COUNTS."""

    site: str
    round: int
    attempt: int
    model: int
    num_examples: int


@dataclass(frozen=True)
class FinalReport(Record):
    """A site's account of its held-out rows after the last round, beside its arrays.

    :data:`FIGURES_OF_RESAMPLES`, and of classes :data:`COUNTS` and :data:`CALIBRATION`.
    """

    site: str
    round: int
    attempt: int
    model: int
    num_examples: int
    units: int
    """Rows, or groups of them, that were drawn with replacement."""
    threshold: float
    """Used; NaN: the most probable class."""
    metrics: list[str]
    """Names, in the order of the figures."""
    widths: list[int]
    """How many columns of the figures belong to each."""


COUNTS = "counts"
"""Name of an array of rows, int64: (2, bins) by class and probability, or (K, K) confusion."""
CALIBRATION = "calibration"
"""Name of the array of rows, summed probabilities and hits by bin, (3, bins) float64."""
FIGURES_OF_RESAMPLES = "figures"
"""Name of the array (1 + resamples, 1 + sum of widths) float64: of the held-out rows and of each
resample the number of rows and what the metrics' sums are."""
