"""Tally of turns: how often each site was asked to train, fair to those that come late."""

from dataclasses import dataclass, field, replace

import numpy as np

__all__ = ["Turns"]


@dataclass(frozen=True)
class Turns:
    """Times each site was asked to train, less what its absence would have it catch up on.

    A site that joins or comes back counts at least as many turns as whoever of those that stayed
    had the fewest: a rule that prefers sites with few turns would have it train in every round.
    Where nobody stayed, it is those that left: else they, too, would be shut out once they return.
    """

    counts: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """(n,) turns of all sites."""
    present: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=bool))
    """(n,) who was there when they were last seen."""

    def seen(self, available: np.ndarray) -> "Turns":
        """Return the turns in a round in which the sites of the mask (n,) are there.

        Within a round it can be called again.
        """
        new = len(available) - len(self.counts)
        counts = np.append(self.counts, np.zeros(new, dtype=np.int64))
        present = np.append(self.present, np.zeros(new, dtype=bool))
        stayed, came = available & present, available & ~present
        before = stayed if stayed.any() else present
        if before.any():
            counts[came] = np.maximum(counts[came], counts[before].min())
        return Turns(counts, available.copy())

    def took(self, clients: np.ndarray) -> "Turns":
        """Return the turns once some sites, (m,) positions, were asked to train."""
        counts = self.counts.copy()
        counts[clients] += 1
        return replace(self, counts=counts)
