"""Functions of ``convolutional.c``, compiled and loaded."""

import ctypes
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client_app.training import compiler
from client_app.training.compiler import array_of

log = logging.getLogger("coterie")

__all__ = ["MOST_LAYERS", "ConvolutionalSteps", "load", "load_or_say"]

MOST_LAYERS = 64

_FLOATS, _INTS, _LAYERS = array_of(np.float32), array_of(np.int64), array_of(np.int32)
_CONVOLVE = [
    *(ctypes.c_int, _LAYERS, _FLOATS, _INTS, _INTS),
    *(ctypes.c_int64, ctypes.c_int, ctypes.c_int64),
    *(_FLOATS, _FLOATS, _FLOATS, array_of(np.uint8)),
    *(ctypes.c_float, ctypes.c_float, ctypes.c_float),
    *(_FLOATS, ctypes.c_float, ctypes.c_int, ctypes.c_float, ctypes.c_float, array_of(np.int32)),
    *(ctypes.c_int, ctypes.c_int64),
]
_LOGITS = [
    *(ctypes.c_int, _LAYERS, _FLOATS, _INTS, ctypes.c_int64),
    *(_FLOATS, array_of(np.uint8), _FLOATS),
]
_BLOCKS = 4, 8, 10, 12, 16


@dataclass(frozen=True)
class ConvolutionalSteps:
    """The compiled functions, and how they want channels laid out."""

    convolve: Callable[..., float]
    """``coterie_convolve`` there; takes NumPy arrays, and refuses wrong types."""
    logits: Callable[..., None]
    """``coterie_logits`` likewise."""
    space: Callable[..., int]
    """``coterie_space`` there."""
    lanes: int
    """Numbers in a vector: of samples, or of tiles."""
    most_channels: int

    def blocks(self, channels: int) -> tuple[int, int]:
        """Return how many blocks of how many channels hold these with the least to spare."""
        sizes = [size for size in _BLOCKS if size <= self.most_channels]
        size = min(sizes, key=lambda size: (-(-channels // size) * size, -size))
        return -(-channels // size), size


@functools.cache
def load_or_say() -> ConvolutionalSteps | None:
    """Return the compiled steps; None, said once, where they cannot be had on this machine."""
    try:
        return load()
    except compiler.CannotCompileError as error:
        log.info(
            "convolutions train in torch's loop, which takes several times as long as steps in C: "
            "%s",
            error,
        )
        return None


@functools.cache
def load() -> ConvolutionalSteps:
    """Return the compiled steps.

    Raises:
        CannotCompileError: there is no C compiler, or it refuses.
    """
    library: Any = compiler.library(Path(__file__).with_name("convolutional.c"))
    convolve, logits = library.coterie_convolve, library.coterie_logits
    space = library.coterie_space
    convolve.restype, convolve.argtypes = ctypes.c_double, _CONVOLVE
    logits.restype, logits.argtypes = None, _LOGITS
    space.restype, space.argtypes = ctypes.c_int64, [ctypes.c_int, _LAYERS, ctypes.c_int]
    return ConvolutionalSteps(
        convolve, logits, space, library.coterie_lanes(), library.coterie_most_channels()
    )
