"""Tally of turns: how often each site was asked to train, fair to those that come late."""

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["Turns"]


class Turns:
    """Times each site was asked to train, less what its absence would have it catch up on.

    A site that joins or comes back counts at least as many turns as whoever of those that stayed
    had the fewest: a rule that prefers sites with few turns would have it train in every round.
    Where nobody stayed, it is those that left: else they, too, would be shut out once they return.
    """

    def __init__(self) -> None:
        self._counts = np.empty(0, dtype=np.int64)
        self._present = np.empty(0, dtype=bool)

    def seen(self, available: np.ndarray) -> np.ndarray:
        """Return the turns (n,) of all sites in a round in which those of the mask (n,) are there.

        Within a round it can be called again.
        """
        new = len(available) - len(self._counts)
        counts = np.append(self._counts, np.zeros(new, dtype=np.int64))
        present = np.append(self._present, np.zeros(new, dtype=bool))
        stayed, came = available & present, available & ~present
        before = stayed if stayed.any() else present
        if before.any():
            counts[came] = np.maximum(counts[came], counts[before].min())
        self._counts, self._present = counts, available.copy()
        return counts.copy()

    def took(self, clients: np.ndarray) -> None:
        """Count that some sites, (m,) positions, were asked to train."""
        self._counts[clients] += 1

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        return {"counts": self._counts, "present": self._present}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self._counts, self._present = state["counts"].copy(), state["present"].copy()
