"""Shifted sites: images of a simulated federation in which each site sees things differently."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.data.in_memory import Dataset, standardised_again
from common.data.rows import IntArray
from common.data.shifts import IMAGE_SHIFTS, ImageShift, offsets
from common.data.standardising import chunks
from common.errors import ConfigError
from common.splits import SiteRows
from common.tasks.inputs import IMAGES

Floats = NDArray[np.float32]


def shifted(dataset: Dataset, sites: Sequence[SiteRows], kind: str, size: float) -> Dataset:
    """Return the data set with each site's training and test images changed as its place says.

    Brightness is taken per channel from the darkest to the lightest pixel of the whole set. The
    result is standardised anew. Without a size, the data set itself is returned.

    Args:
        dataset: images (channels, height, width).
        sites: all of them, in the order in which they stand from -size to size.
        kind: one of ``common.data.shifts.IMAGE_SHIFTS``.
        size: from 0 to 1.

    Raises:
        ConfigError: rows that are no images, or images that this kind cannot change.
    """
    if dataset.kind != IMAGES:
        raise ConfigError(
            f"shift = {kind}: changes images, but rows of dataset={dataset.name} are "
            f"{dataset.inputs}; use shift=none, or a data set of images"
        )
    if not size:
        return dataset
    train_x, test_x = dataset.train.x.copy(), dataset.test.x.copy()
    low, high = _range(train_x, test_x)
    for site, place in zip(sites, offsets(len(sites), size).tolist(), strict=True):
        if place:
            change = _Change(IMAGE_SHIFTS[kind], place, low, high)
            change.apply(train_x, site.train)
            change.apply(test_x, site.test)
    return standardised_again(dataset, train_x, test_x)


def _range(*parts: Floats) -> tuple[Floats, Floats]:
    """Return the least and the largest value of each channel, (1, channels, 1, 1)."""
    axes = (0, 2, 3)
    lows = [x.min(axis=axes, keepdims=True) for x in parts]
    highs = [x.max(axis=axes, keepdims=True) for x in parts]
    return np.minimum(*lows), np.maximum(*highs)


class _Change:
    """One site's shift, for images whose values go from ``low`` to ``high`` in each channel."""

    def __init__(self, shift: ImageShift, place: float, low: Floats, high: Floats) -> None:
        self._shift, self._place, self._low = shift, place, low
        self._span = np.where(high > low, high - low, 1).astype(np.float32)

    def apply(self, x: Floats, rows: IntArray) -> None:
        """Change these rows of images in place."""
        for chunk in chunks(x, len(rows)):
            chosen = rows[chunk]
            light: Floats = np.clip((x[chosen] - self._low) / self._span, 0, 1)
            x[chosen] = self._low + self._span * self._shift(light, self._place)
