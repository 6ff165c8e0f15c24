"""Kinds of rows that tests make up, told by their axes, as no code of the packages does."""

from common.tasks.inputs import FEATURES, IMAGES, VOLUMES, WINDOWS, Inputs

_BY_AXES = {1: FEATURES, 2: WINDOWS, 3: IMAGES, 4: VOLUMES}


def rows_of(*shape):
    """Return what goes into a network of rows of a shape that are no tokens."""
    return Inputs(_BY_AXES[len(shape)], shape)


def kind_of(x):
    """Return the kind of rows (n, ...) that are no tokens."""
    return _BY_AXES[x.ndim - 1]
