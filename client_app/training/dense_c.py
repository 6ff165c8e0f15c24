"""Functions of ``dense.c``, compiled and loaded."""

import ctypes
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client_app.training import compiler
from client_app.training.compiler import CannotCompileError, array_of

log = logging.getLogger("coterie")

__all__ = ["MOST_LAYERS", "DenseSteps", "load"]

MOST_LAYERS = 64

_FLOATS, _INTS, _SPACE = array_of(np.float32), array_of(np.int64), array_of(np.uint8)
_BITS = array_of(np.int16)
_NETWORK = [ctypes.c_int, array_of(np.int32), ctypes.c_int]
_EXCHANGE = [*_NETWORK, _SPACE, _FLOATS, _FLOATS, ctypes.c_int, ctypes.c_int]
_TRAIN = [
    *(*_NETWORK, _SPACE, _FLOATS, _INTS, _INTS, ctypes.c_int64),
    *(_BITS, _FLOATS, _BITS),
    *(ctypes.c_float, ctypes.c_float, ctypes.c_float),
    *(ctypes.c_float, ctypes.c_int, ctypes.c_float, ctypes.c_float, array_of(np.int32)),
    *(ctypes.c_int, ctypes.c_int64),
]


@dataclass(frozen=True)
class DenseSteps:
    """The compiled functions; they take NumPy arrays, and refuse wrong types."""

    exchange: Callable[..., None]
    """``coterie_exchange`` there."""
    train: Callable[..., float]
    """``coterie_train`` there."""
    space: Callable[..., int]
    """``coterie_space`` there."""
    lanes: int
    """Numbers in a vector."""


@functools.cache
def load() -> DenseSteps | None:
    """Return the compiled steps; None, said once, where they cannot be had on this machine."""
    try:
        library: Any = compiler.library(Path(__file__).with_name("dense.c"))
    except CannotCompileError as error:
        log.info(
            "dense networks train in torch's loop, which takes several times as long as steps in "
            "C; install a C compiler (gcc): %s",
            error,
        )
        return None
    exchange, train, space = library.coterie_exchange, library.coterie_train, library.coterie_space
    exchange.restype, exchange.argtypes = None, _EXCHANGE
    train.restype, train.argtypes = ctypes.c_double, _TRAIN
    space.restype, space.argtypes = ctypes.c_int64, _NETWORK
    return DenseSteps(exchange, train, space, library.coterie_lanes())
