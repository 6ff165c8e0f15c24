"""Functions of ``program_steps.c``, compiled and loaded."""

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

__all__ = ["STEP", "ProgramSteps", "StepKind", "load", "load_or_say"]

_FLOATS, _INTS, _BYTES = array_of(np.float32), array_of(np.int64), array_of(np.uint8)
_WORDS = (
    *("kind", "in", "other", "out", "in_size", "out_size", "passes", "weight", "bias"),
    *("depth", "outs", "block", "places", "offsets", "out_apart", "place_apart"),
    *("padded", "padded_size", "planes", "height", "width", "tall", "wide"),
    *("taps", "kept", "run", "chunk", "mean", "variance"),
)
STEP = np.dtype([*((name, np.int64) for name in _WORDS), ("number", "f8"), ("more", "f8")])
"""``step`` there, where the words are explained."""
_PLAY = [
    *(ctypes.c_int, np.ctypeslib.ndpointer(dtype=STEP, flags="C_CONTIGUOUS"), _INTS, _INTS),
    *(ctypes.c_int64, _BYTES, _FLOATS, _INTS, _INTS, ctypes.c_int, _INTS, _BYTES),
    *(ctypes.c_int64, _FLOATS, _FLOATS, _FLOATS, _FLOATS, ctypes.c_int, _INTS),
    *(ctypes.c_float, ctypes.c_float, ctypes.c_float, ctypes.c_float, ctypes.c_int),
    *(ctypes.c_float, ctypes.c_float, ctypes.c_int, ctypes.c_int64),
]


class StepKind:
    """Kinds of steps, as they are numbered there."""

    PRODUCT, RELU, LEAKY_RELU, TANH, GELU, GELU_TANH, MAX_POOL, AVERAGE, DROP, NORM = range(10)
    BATCH_NORM, ADD = 10, 11


@dataclass(frozen=True)
class ProgramSteps:
    """The compiled function; it takes NumPy arrays, and refuses wrong types."""

    play: Callable[..., float]
    """``coterie_play`` there."""
    lanes: int
    """Numbers in a vector."""


@functools.cache
def load_or_say() -> ProgramSteps | None:
    """Return the compiled steps; None, said once, where they cannot be had on this machine."""
    try:
        return load()
    except CannotCompileError as error:
        log.info(
            "networks train in torch's loop, which takes several times as long as steps in C: %s",
            error,
        )
        return None


@functools.cache
def load() -> ProgramSteps:
    """Return the compiled steps.

    Raises:
        CannotCompileError: there is no C compiler, or it refuses.
    """
    library: Any = compiler.library(Path(__file__).with_name("program_steps.c"))
    assert library.coterie_words() * 8 == STEP.itemsize
    play = library.coterie_play
    play.restype, play.argtypes = ctypes.c_double, _PLAY
    return ProgramSteps(play, library.coterie_lanes())
