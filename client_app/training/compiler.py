"""Compiler of C that stands as text in a module: once per machine, the library is kept.

The sources are texts in Python and no files beside it: Flower's app bundles carry Python files
only. What is compiled is kept in the user's cache folder.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLAGS = ("-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-fPIC", "-c")

PRELUDE = r"""
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Numbers below the smallest normal one count as 0: they cost a hundred times as much, and momenta
   end there. Only in here: whoever called gets the processor as it was. */
#ifdef __SSE__
#include <xmmintrin.h>
static unsigned flush_to_zero(void) {
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
}
static void restore(unsigned before) { _mm_setcsr(before); }
#else
static unsigned flush_to_zero(void) { return 0; }
static void restore(unsigned before) { (void)before; }
#endif

#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

/* What is written once for any size and compiled for each: only then do sums stay in registers. */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Cross-entropy of a row, whose logits lie `apart` from each other, as do the derivatives by them:
   delta becomes (softmax - one-hot) * share. */
static inline double row_loss(int classes, int apart, const float *logits, int64_t label,
                              float share, float *delta) {
    float largest = logits[0], sum = 0;
    for (int j = 1; j < classes; j++)
        largest = logits[j * apart] > largest ? logits[j * apart] : largest;
    for (int j = 0; j < classes; j++)
        sum += delta[j * apart] = expf(logits[j * apart] - largest);
    for (int j = 0; j < classes; j++) delta[j * apart] = delta[j * apart] / sum * share;
    delta[label * apart] -= share;
    return logf(sum) - (logits[label * apart] - largest);
}
"""
"""C that every source begins with."""


def memory_for(size: int, lanes: int) -> NDArray[np.uint8]:
    """Return so many bytes, all 0, that begin at a multiple of a vector's size."""
    vector = 4 * lanes
    memory = np.zeros(size + vector, np.uint8)
    start = -memory.ctypes.data % vector
    return memory[start : start + size]


class CannotCompileError(Exception):
    """No library, and why."""


def array_of(dtype: type) -> Any:
    """Return the type of a C-contiguous array argument; arrays of other types are refused."""
    return np.ctypeslib.ndpointer(dtype=dtype, flags="C_CONTIGUOUS")


def library(name: str, source: str) -> ctypes.CDLL:
    """Return the library of a source after the prelude, compiled if it is not there yet.

    Raises:
        CannotCompileError: there is no compiler, or it refuses.
    """
    try:
        return ctypes.CDLL(str(_compiled(name, PRELUDE + source)))
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotCompileError(getattr(error, "stderr", None) or str(error)) from error


def _compiled(name: str, source: str) -> Path:
    words = (source, *FLAGS, platform.machine(), _processor())
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coterie"
    kept = folder / f"{name}-{digest}.so"
    if not kept.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            parts, made = Path(scratch) / "parts.o", Path(scratch) / "made.so"
            _cc(source, *FLAGS, "-x", "c", "-", "-o", str(parts))
            # Linked by itself: with -ffast-math GCC links code that lets the whole process flush
            # small numbers to zero as soon as the library is loaded.
            _cc("", "-shared", str(parts), "-o", str(made), "-lm")
            made.replace(kept)  # another process may do the same: whole either way
    return kept


def found() -> str | None:
    """Return the path of the compiler; None if there is none."""
    return shutil.which(_compiler())


def _compiler() -> str:
    return os.environ.get("CC", "cc")


def _cc(source: str, *words: str) -> None:
    command = [_compiler(), *words]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)  # noqa: S603


def _processor() -> str:
    """Return what ``-march=native`` depends on, as Linux tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
