"""Splits: clusters cut in two again and again, where the members of one pull apart.

Source: Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask
Optimization under Privacy Constraints" (2020), CFL.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from common.config import Settings
from common.plugins import PieceSettings
from server_app.clustering.by_updates import bipartition, cosines
from server_app.clustering.grouping import STRATEGIES, Grouping
from server_app.dissimilarity import FloatArray

__all__ = ["CflSettings", "RecursiveSplits", "Tension", "nearer_part"]

IntArray = NDArray[np.int64]

_FEWEST = 3  # members that a cluster needs to be split
_SAME = 1e-9  # 1 - cosine of updates that nothing tells apart
_RELATIVE = 0.25  # of the longest update, if no length is set


class CflSettings(PieceSettings):
    """When CFL splits a cluster."""

    cfl_first_round: int = Field(20, ge=0, description="cfl: no split up to this round")
    cfl_mean_norm: float = Field(
        -1,
        ge=-1,
        description="cfl: split where the mean update is shorter (the paper's eps1); -1: than a "
        "quarter of the longest",
    )
    cfl_longest_norm: float = Field(
        0, ge=0, description="cfl: and the longest update is longer (the paper's eps2)"
    )
    cfl_separation: float = Field(
        0,
        ge=0,
        le=1,
        description="cfl: and sqrt((1 - largest cosine across)/2) is at least this (the paper's "
        "gamma_max)",
    )


@dataclass(frozen=True)
class Tension:
    """How the updates of a cluster pull: together or apart. Lengths are L2."""

    mean_norm: float
    """Of the mean update, by rows."""
    longest_norm: float
    """Of a single one."""

    @classmethod
    def of(cls, updates: FloatArray, rows: NDArray[np.integer]) -> Self:
        """Return that of updates (m, d) of sites with so many rows (m,)."""
        mean = np.average(np.asarray(updates, dtype=np.float64), axis=0, weights=rows)
        longest = np.linalg.norm(updates, axis=1).max()
        return cls(float(np.linalg.norm(mean)), float(longest))


@dataclass(frozen=True)
class RecursiveSplits(Grouping):
    """Clusters that are split in two where their common model rests and their members do not."""

    needs: ClassVar[frozenset[str]] = frozenset({"updates"})
    played_by: ClassVar[str] = f"{STRATEGIES}.recursive_splits:RecursiveSplitting"
    first_round: int
    """No split up to this round."""
    mean_norm: float
    """The mean update must be shorter; -1: than a quarter of the longest."""
    longest_norm: float
    """The longest update must be longer."""
    separation: float
    """The two parts must be this far apart at least, in [0, 1]."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return what the settings describe."""
        own = settings.of(CflSettings)
        return cls(own.cfl_first_round, own.cfl_mean_norm, own.cfl_longest_norm, own.cfl_separation)

    def is_due(self, server_round: int, members: int, tension: Tension) -> bool:
        """Return whether a cluster of so many members is to be split: Sattler, Algorithm 2."""
        bound = _RELATIVE * tension.longest_norm if self.mean_norm == -1 else self.mean_norm
        return (
            server_round > self.first_round
            and members >= _FEWEST
            and tension.mean_norm < bound
            and tension.longest_norm > self.longest_norm
        )

    def parts(self, updates: FloatArray) -> tuple[IntArray, float] | None:
        """Return the part (m,), 0 or 1, of each update (m, d), and the largest cosine across.

        None: fewer than two updates, or parts that are not far enough apart.
        """
        if len(updates) < 2:
            return None
        labels = bipartition(updates)
        across = float(cosines(updates)[np.ix_(labels == 0, labels == 1)].max())
        if 1 - across < _SAME:
            return None
        # Sattler, the separation gap.
        gap = math.sqrt((1 - across) / 2)
        return (labels, across) if gap >= self.separation else None


def nearer_part(update: FloatArray, updates: FloatArray, labels: IntArray) -> int:
    """Return the part, 0 or more, of updates (m, d) with the larger mean cosine to one (d,).

    Args:
        update: the one.
        updates: of others.
        labels: (m,) their parts, no number left out.
    """
    to_others = cosines(np.vstack([updates, update]))[-1, :-1]
    means = [to_others[labels == part].mean() for part in range(int(labels.max()) + 1)]
    return int(np.argmax(means))
