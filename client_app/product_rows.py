"""What a site multiplies: vectors of its label distribution, in fixed point."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from client_app import descriptors
from client_app.site import Site
from common.errors import MessageError
from common.label_products import LABEL_PRODUCTS
from common.product_messages import LABELS
from common.ring import Words
from common.secure_product import fixed_rows

__all__ = ["Material", "material"]


@dataclass(frozen=True, eq=False)
class Material:
    """A site's rows by number, as the left and as the right factor: (n, width) each."""

    left: Mapping[int, Words]
    right: Mapping[int, Words]
    width: int

    def as_arrays(self) -> dict[str, Words]:
        """Return all rows under names that :meth:`of_arrays` understands."""
        sides = {"left": self.left, "right": self.right}
        return {
            f"{side}.{number}": rows
            for side, held in sides.items()
            for number, rows in held.items()
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray], width: int) -> Self:
        """Return what :meth:`as_arrays` gave."""
        sides: dict[str, dict[int, Words]] = {"left": {}, "right": {}}
        for name, rows in arrays.items():
            side, number = name.split(".")
            sides[side][int(number)] = rows
        return cls(sides["left"], sides["right"], width)


def material(purpose: str, site: Site) -> Material:
    """Return what a site multiplies for a purpose.

    Raises:
        MessageError: a purpose, or a metric, that cannot be had from products.
    """
    metric = site.settings.metric
    if purpose != LABELS or metric not in LABEL_PRODUCTS:
        raise MessageError(f"{purpose} with metric={metric} is no product that sites can take")
    counts = descriptors.label_histogram(
        site.dataset.train_y[site.rows.train], site.dataset.num_classes
    )
    shares = np.array(counts) / sum(counts)
    how = LABEL_PRODUCTS[metric]
    left, right = fixed_rows(how.left(shares)[None]), fixed_rows(how.right(shares)[None])
    return Material({0: left}, {0: right}, left.shape[1])
