"""Overfitting: held-out loss that rises from some round on, told by a run's lines."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from server_app.record.format import RoundLine

__all__ = ["Overfitting", "has_stopped_improving"]

_LATER = 3
"""Rounds after the lowest loss, whose mean must be above it: one round alone may be chance."""
_RISE = 0.05
"""By which share of the lowest loss it must be."""


@dataclass(frozen=True)
class Overfitting:
    """Since which round training has made the models worse on held-out rows."""

    since: int
    """The round of the lowest held-out loss."""
    lowest: float
    last: float
    """Held-out loss now."""

    @classmethod
    def of(cls, lines: Iterable[RoundLine]) -> Self | None:
        """Return what the lines of a run's rounds tell; None where nothing rises.

        Held-out loss counts as risen where the mean of the last three rounds, all of them after
        the lowest, lies a twentieth above it, while the loss of training rows has fallen since.
        """
        rounds = [line for line in lines if line.has_result and math.isfinite(line.loss)]
        if len(rounds) <= _LATER:
            return None
        losses = np.array([line.loss for line in rounds])
        place = int(losses.argmin())
        lowest, later = rounds[place], losses[-_LATER:]
        if place >= len(rounds) - _LATER or not rounds[-1].train_loss < lowest.train_loss:
            return None
        if later.mean() - lowest.loss <= _RISE * abs(lowest.loss):
            return None
        return cls(lowest.round, lowest.loss, rounds[-1].loss)


def has_stopped_improving(lines: Iterable[RoundLine], patience: int) -> bool:
    """Whether so many rounds have passed since the one of the lowest held-out loss."""
    rounds = [line for line in lines if line.has_result and math.isfinite(line.loss)]
    best = min(rounds, key=lambda line: line.loss, default=None)
    return best is not None and rounds[-1].round - best.round >= patience
