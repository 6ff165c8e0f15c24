"""Label products: what one product of two vectors tells, so that no site shows its histogram.

A site makes a left and a right vector of its label distribution p; the product of one site's left
with another's right is all that the distance of the two needs. The product of the distributions
themselves is one of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["INNER_PRODUCT", "LABEL_PRODUCTS", "LabelProduct"]

FloatArray: TypeAlias = NDArray[np.float64]

INNER_PRODUCT = "inner-product"


@dataclass(frozen=True)
class LabelProduct:
    """One metric on label distributions (K,) as a product.

    >>> p, q = np.array([0.8, 0.2]), np.array([0.2, 0.8])
    >>> mse = LABEL_PRODUCTS["mse"]
    >>> round(float(mse.distance(mse.left(p) @ mse.right(q), 2)), 9)
    0.36

    Attributes:
        left: p -> the left vector (d,).
        right: q -> the right vector (d,).
        distance: products of left and right vectors, and K -> what they tell, never negative.
    """

    left: Callable[[FloatArray], FloatArray]
    right: Callable[[FloatArray], FloatArray]
    distance: Callable[[FloatArray, int], FloatArray]


# (p, |p|^2, 1) . (-2q, 1, |q|^2) = |p - q|^2


def _left_of_squares(p: FloatArray) -> FloatArray:
    return np.concatenate([p, [p @ p, 1.0]])


def _right_of_squares(q: FloatArray) -> FloatArray:
    return np.concatenate([-2.0 * q, [1.0, q @ q]])


def _squares(products: FloatArray, _num_classes: int) -> FloatArray:
    return np.maximum(products, 0.0)


def _direction(p: FloatArray) -> FloatArray:
    direction: FloatArray = p / np.linalg.norm(p)
    return direction


def _of_squares(distance: Callable[[FloatArray, int], FloatArray]) -> LabelProduct:
    return LabelProduct(_left_of_squares, _right_of_squares, distance)


LABEL_PRODUCTS: Mapping[str, LabelProduct] = {
    "euclidean": _of_squares(lambda products, k: np.sqrt(_squares(products, k))),
    "mse": _of_squares(lambda products, k: _squares(products, k) / k),
    "mmd": _of_squares(_squares),
    "cosine": LabelProduct(
        _direction, _direction, lambda products, _: np.maximum(1.0 - products, 0.0)
    ),
    "hellinger": LabelProduct(
        np.sqrt, np.sqrt, lambda products, _: np.sqrt(np.maximum(1.0 - products, 0.0))
    ),
    INNER_PRODUCT: LabelProduct(
        lambda p: p, lambda q: q, lambda products, _: np.maximum(products, 0.0)
    ),
}
"""By the name that the metric has in ``dissimilarity.LABEL_METRICS``; and <p, q>, no metric."""
