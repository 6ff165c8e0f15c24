"""Projection: directions of rows, and the public frame in which class Gaussians are compared.

Sites and server do the same arithmetic, so that a site can describe its own rows.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError
from common.seeds import generator

__all__ = ["PROJECTED_DIMENSIONS", "projected_into_ball", "public_projection", "unit_rows"]

FloatArray = NDArray[np.float64]

PROJECTED_DIMENSIONS = 5
"""Dimensions in which class-conditional Gaussians are compared; covariances of few rows are noise
in more of them."""


def unit_rows(rows: FloatArray) -> FloatArray:
    """Return z = h/‖h‖ for every row (n, d); a row of zeros has no direction and stays zero.

    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    # Scaled by its largest entry no row can overflow or vanish in its norm.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled = rows / np.where(largest > 0, largest, 1.0)
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    unit: FloatArray = scaled / np.where(norms > 0, norms, 1.0)
    return unit


@cache  # every class of every client asks for the same few
def public_projection(
    width: int, dimensions: int = PROJECTED_DIMENSIONS, seed: int = 0
) -> FloatArray:
    """Return orthonormal columns (width, min(dimensions, width)), the same for everyone.

    The Q of a Gaussian matrix, uniform among all frames. It depends on the seed and the two sizes
    alone, never on data, so it may be known to all. It cannot be written to.

    Raises:
        DataError: a size below 1.
    """
    if width < 1 or dimensions < 1:
        raise DataError(f"a projection from {width} to {dimensions} columns: give at least 1 each")
    rng = generator(seed, "ot-projection", width, dimensions)
    frame, triangle = np.linalg.qr(rng.standard_normal((width, min(dimensions, width))))
    # QR leaves the sign of each column open; a positive diagonal makes Q unique, and uniform
    # (Mezzadri, Notices of the AMS, 2007).
    unique: FloatArray = frame * np.sign(np.diag(triangle))
    unique.flags.writeable = False
    return unique


def projected_into_ball(rows: FloatArray, frame: FloatArray) -> FloatArray:
    """Return rows (n, d) in the frame's r columns, times sqrt(d/r), clipped to norm 1, (n, r).

    The scale keeps the squared length of a unit row on average, over all frames. The clip is what
    bounds any one row's share in a mean or second moment.
    """
    width, dimensions = frame.shape
    projected = rows @ frame * np.sqrt(width / dimensions)
    norms = np.linalg.norm(projected, axis=1, keepdims=True)
    clipped: FloatArray = projected / np.maximum(norms, 1.0)
    return clipped
