"""Fixed point: weighted models as vectors of the ring Z_2^64, whose sum over a cohort cannot wrap.

An entry is ``rint(weight * value * 2^24)``, an integer buffer's is ``weight * value``. The bound on
``|value|`` follows from what everybody knows, the cohort's size and the largest weight in it:
members * max weight * bound < 2^63 (the specification's sum n_i * clip * 2^f < 2^63), so the sum
read as a signed number is the exact sum. What does not fit is refused, never wrapped or clipped.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import SecaggError

__all__ = ["FRACTION_BITS", "Mean", "Ring", "Scale"]

Ring = NDArray[np.uint64]
"""Entries of Z_2^64."""

FRACTION_BITS = 24


@dataclass(frozen=True)
class Mean:
    """The weighted mean of a cohort's models and metrics."""

    parameters: dict[str, NDArray[np.generic]]
    metrics: list[float]
    weight: int
    """Sum of the weights."""


@dataclass(frozen=True)
class Scale:
    """What one cohort's vectors are scaled to.

    >>> scale = Scale(members=2, max_weight=30)
    >>> first = scale.encode({"w": np.array([1.0, -0.5])}, [], weight=10)
    >>> second = scale.encode({"w": np.array([4.0, 1.0])}, [], weight=20)
    >>> mean = scale.decode(first + second, {"w": np.zeros(2)}, 0, (2, 60))
    >>> mean.parameters["w"].tolist(), mean.weight
    ([3.0, 0.5], 30)

    Attributes:
        members: how many vectors may be added, at least 1.
        max_weight: the largest weight that any of them may have, at least 1.

    Raises:
        SecaggError: so many members or so large weights that values above 1 would not fit.
    """

    members: int
    max_weight: int

    def __post_init__(self) -> None:
        if self.members < 1 or self.max_weight < 1:
            raise SecaggError(f"members = {self.members}, max weight = {self.max_weight}: below 1")
        if self.limit < 1 << FRACTION_BITS:
            raise SecaggError(
                f"{self.members} members with weights up to {self.max_weight} leave no room for "
                "values above 1 in 64 bits; train fewer sites per round"
            )

    @property
    def limit(self) -> int:
        """Largest ``|value|`` in units of 2^-24 (of 1 for integers): a power of two."""
        # members * max_weight < 2^bits, hence members * max_weight * limit < 2^63.
        return 1 << max(63 - (self.members * self.max_weight).bit_length(), 0)

    @property
    def bound(self) -> float:
        """Largest ``|value|`` of a real number."""
        return self.limit / (1 << FRACTION_BITS)

    def encode(
        self, parameters: Mapping[str, NDArray[np.generic]], metrics: Sequence[float], weight: int
    ) -> Ring:
        """Return a member's vector: its arrays end to end, its metrics, and its weight.

        Raises:
            SecaggError: a weight above ``max_weight``, or a value that is NaN or above the bound.
        """
        self.check_weight(weight)
        arrays = {**parameters, "metrics": np.array(metrics, dtype=np.float64)}
        parts = [self._encoded(name, value, weight) for name, value in arrays.items()]
        return np.concatenate([*parts, np.array([weight], dtype=np.int64)]).view(np.uint64)

    def check_weight(self, weight: int) -> None:
        """Raise :class:`SecaggError` for a weight that no member may have."""
        if not 1 <= weight <= self.max_weight:
            raise SecaggError(f"weight = {weight}: must be 1 to {self.max_weight}, as was agreed")

    def nothing(
        self, parameters: Mapping[str, NDArray[np.generic]], metrics: Sequence[float]
    ) -> Ring:
        """Return the vector of a member that adds nothing, its weight 0, as long as any other."""
        size = sum(value.size for value in parameters.values()) + len(metrics) + 1
        return np.zeros(size, np.uint64)

    def decode(
        self,
        total: Ring,
        like: Mapping[str, NDArray[np.generic]],
        num_metrics: int,
        weights: tuple[int, int],
    ) -> Mean:
        """Return the mean that a sum of vectors amounts to.

        Args:
            total: the sum, with the layout of :meth:`encode`.
            like: arrays with the names, shapes and types of a member's.
            num_metrics: how many metrics follow the arrays.
            weights: smallest and largest sum of weights that the cohort can have.

        Raises:
            SecaggError: a sum that no cohort of these members can have: another length, a weight
                outside the range, or an entry beyond the bound.
        """
        size = sum(value.size for value in like.values()) + num_metrics + 1
        if total.shape != (size,) or total.dtype != np.uint64:
            raise SecaggError(
                f"a sum of shape {total.shape} {total.dtype}, expected ({size},) uint64"
            )
        entries = total.view(np.int64)
        weight = int(entries[-1])
        if not weights[0] <= weight <= weights[1]:
            raise SecaggError(
                f"the weights add up to {weight}, which is not within {weights[0]} to {weights[1]}"
            )
        if size > 1 and np.abs(entries[:-1].astype(np.float64)).max() > weight * self.limit:
            raise SecaggError("an entry of the sum is larger than its members could make it")
        parameters, start = {}, 0
        for name, value in like.items():
            part = entries[start : start + value.size].reshape(value.shape)
            parameters[name] = _mean(part, weight, value.dtype)
            start += value.size
        unit = weight * 2.0**FRACTION_BITS
        return Mean(parameters, (entries[start:-1] / unit).tolist(), weight)

    def _encoded(self, name: str, value: NDArray[np.generic], weight: int) -> NDArray[np.int64]:
        flat = value.reshape(-1)
        if flat.dtype.kind in "iu":
            # Compared as Python's integers: neither |min| nor a large uint64 fits its own type.
            if flat.size and max(-int(flat.min()), int(flat.max())) > self.limit:
                raise SecaggError(f"array {name!r} holds an integer above {self.limit}")
            return flat.astype(np.int64) * weight
        if flat.dtype.kind != "f":
            raise SecaggError(f"array {name!r} is {flat.dtype}: only numbers can be added")
        scaled = flat.astype(np.float64)
        scaled *= weight * 2.0**FRACTION_BITS
        np.rint(scaled, out=scaled)
        largest = float(np.abs(scaled).max(initial=0.0))  # NaN if any entry is
        if not largest <= weight * self.limit:
            held = "NaN" if math.isnan(largest) else f"{largest / weight / 2**FRACTION_BITS:.3g}"
            raise SecaggError(
                f"array {name!r} holds {held}, where {self.members} members with weights up to "
                f"{self.max_weight} leave room for {self.bound:.3g}; the update is not sent"
            )
        return scaled.astype(np.int64)


def _mean(
    entries: NDArray[np.int64], weight: int, dtype: np.dtype[np.generic]
) -> NDArray[np.generic]:
    if dtype.kind in "iu":
        return np.asarray(np.rint(entries / weight), dtype)
    return np.asarray(entries / (weight * 2.0**FRACTION_BITS), dtype)
