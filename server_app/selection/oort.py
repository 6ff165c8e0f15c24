"""Oort: sooner sites whose rows the model fits badly and who are quick, and new ones to try.

Source: Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI
2021.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from common.plugins import PieceSettings
from server_app.selection.rules import Cohort, Selection, View

__all__ = ["Oort", "OortSettings", "explored_share", "utilities"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_EXPLORE, _EXPLORE_DECAY, _EXPLORE_LEAST = 0.9, 0.98, 0.2
_CLIP = 0.95  # quantile at which a utility is cut off
_CUTOFF = 0.95  # of the last one's utility that would be taken: from there on sites are drawn
_STALE = 0.1  # weight of the time since a site trained
_PENALTY = 2  # exponent for sites that take longer than wanted
_WINDOW = 20  # rounds that the pacer compares
_STEP = 0.1  # of the first wanted duration, that the pacer adds
_LEAST = 1e-12  # utility of a site whose rows fit perfectly: it can be drawn still


class OortSettings(PieceSettings):
    """How long sites are taken to train; a measured time would undo the seed."""

    oort_row_seconds: float = Field(
        1e-4, gt=0, description="oort: what a site is taken to need for a row in an epoch"
    )


def explored_share(number: int) -> float:
    """Return the share of a round's (from 1) cohort that is for sites never tried: 0.9 to 0.2.

    >>> round(explored_share(2), 3), explored_share(500)
    (0.882, 0.2)
    """
    return max(_EXPLORE * _EXPLORE_DECAY ** (number - 1), _EXPLORE_LEAST)


def utilities(
    fits: FloatArray, trained: IntArray, number: int, seconds: FloatArray, wanted: float
) -> FloatArray:
    """Return how much is expected of each tried site, (n,).

    Args:
        fits: (n,) rows times the root of the mean squared loss; cut off at their 95 % quantile.
        trained: (n,) round in which each last trained, from 1.
        number: the round, from 1.
        seconds: (n,) how long each takes.
        wanted: how long a site may take before it counts less, by the square of the ratio.
    """
    found = np.minimum(fits, np.quantile(fits, _CLIP)) + np.sqrt(
        _STALE * math.log(number) / trained
    )
    return np.asarray(found * np.minimum(wanted / seconds, 1.0) ** _PENALTY)


@dataclass
class _Pacer:
    """How long a site may take: longer once what is learnt falls off."""

    wanted: float = 0.0
    """Seconds; 0: not known before the first round."""
    step: float = 0.0

    def start(self, seconds: FloatArray) -> None:
        """Begin with the median of all sites' durations."""
        if not self.wanted:
            self.wanted = float(np.median(seconds))
            self.step = _STEP * self.wanted

    def look(self, gains: Mapping[int, float], number: int) -> None:
        """Grow every 20 rounds whose cohorts' utilities sum up to less than in the 20 before."""
        if number <= 2 * _WINDOW or (number - 1) % _WINDOW:
            return
        last, before = (
            sum(gains.get(at, 0.0) for at in range(number - end, number - end + _WINDOW))
            for end in (_WINDOW, 2 * _WINDOW)
        )
        if last < before:
            self.wanted += self.step


class Oort(Selection):
    """``size`` clients: some never tried, the others by utility."""

    needs: ClassVar[frozenset[str]] = frozenset({"sizes", "links"})
    learns_losses: ClassVar[bool] = True

    def __init__(self, size: int, seconds_per_row: float) -> None:
        self._size, self._seconds_per_row = size, seconds_per_row
        self._gains: dict[int, float] = {}
        self._pacer = _Pacer()

    def choose(self, view: View, rng: np.random.Generator) -> Cohort:
        """Return the cohort, which tells its losses of the model as it trains it."""
        assert view.told is not None
        seconds = self._seconds(view)
        self._pacer.start(seconds)
        if view.round - 1 not in self._gains:  # else the round is retried
            self._gains[view.round - 1] = self._gain(view, seconds)
            self._pacer.look(self._gains, view.round)
        present = view.candidates
        known = view.told.rounds[present] > 0
        fresh, tried = present[~known], present[known]
        m = min(self._size, len(present))
        count = min(round(explored_share(view.round) * m), len(fresh))
        count = max(count, m - len(tried))
        quick = 1 / seconds[fresh]
        explored = fresh[:0]
        if count:
            explored = rng.choice(fresh, count, replace=False, p=quick / quick.sum())
        exploited = self._exploited(view, tried, m - count, seconds, rng)
        return Cohort(np.sort(np.append(explored, exploited)))

    def _seconds(self, view: View) -> FloatArray:
        """Return what each site takes for its rows and for a model down and up, (n,)."""
        assert view.upload_seconds is not None
        found: FloatArray = self._seconds_per_row * view.num_examples + 2 * view.upload_seconds
        return found

    def _utilities(
        self, view: View, tried: IntArray, number: int, seconds: FloatArray
    ) -> FloatArray:
        """Return what is expected of some sites, all tried, in a round."""
        assert view.told is not None
        fits = view.num_examples[tried] * view.told.rms_losses[tried]
        return utilities(fits, view.told.rounds[tried], number, seconds[tried], self._pacer.wanted)

    def _exploited(
        self,
        view: View,
        tried: IntArray,
        count: int,
        seconds: FloatArray,
        rng: np.random.Generator,
    ) -> IntArray:
        if not count:
            return tried[:0]
        found = self._utilities(view, tried, view.round, seconds)
        good = found >= _CUTOFF * np.sort(found)[-count]
        odds = np.maximum(found[good], _LEAST)
        drawn: IntArray = rng.choice(tried[good], count, replace=False, p=odds / odds.sum())
        return drawn

    def _gain(self, view: View, seconds: FloatArray) -> float:
        """Return the sum of the utilities of those who told something in the last round."""
        assert view.told is not None
        number = view.round - 1
        tried = np.flatnonzero(view.told.rounds)
        told = view.told.rounds[tried] == number
        return float(self._utilities(view, tried, number, seconds)[told].sum()) if told.any() else 0

    def state(self) -> dict[str, np.ndarray]:
        """Return the rounds' gains and how long a site may take."""
        return {
            "gain-rounds": np.array(list(self._gains), dtype=np.int64),
            "gains": np.array(list(self._gains.values())),
            "pacer": np.array([self._pacer.wanted, self._pacer.step]),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what :meth:`state` returned."""
        rounds, gains = state["gain-rounds"].tolist(), state["gains"].tolist()
        self._gains = dict(zip(rounds, gains, strict=True))
        self._pacer = _Pacer(*state["pacer"].tolist())
