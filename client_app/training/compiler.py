"""Compiler of C that stands as text in a module: once per machine, the library is kept.

The sources are texts in Python and no files beside it: Flower's app bundles carry Python files
only. What is compiled is kept in the user's cache folder, under a digest of the source, the flags,
the processor and the compiler.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
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

/* How Adam moves in one step, with torch's constants: Kingma & Ba 2015, Algorithm 1. With kind 2,
   AdamW's, the decay is beside the gradient: Loshchilov & Hutter 2019, Algorithm 2. */
typedef struct {
    int kind; /* 0: SGD instead */
    float learning_rate, decay;
    float size; /* of a step: the learning rate over 1 - 0.9^t */
    float root; /* of 1 - 0.999^t */
} adaptive;

static adaptive in_step(int kind, int64_t t, float learning_rate, float decay) {
    double first = 1 - pow(0.9, (double)t), second = 1 - pow(0.999, (double)t);
    return (adaptive){kind, learning_rate, decay, (float)(learning_rate / first),
                      (float)sqrt(second)};
}

static inline void adapt(const adaptive *by, int64_t count, const float *restrict gradients,
                         float *restrict values, float *restrict momenta,
                         float *restrict squares) {
    float kept = by->kind == 2 ? 1 - by->learning_rate * by->decay : 1;
    float decay = by->kind == 2 ? 0 : by->decay, size = by->size, root = by->root;
    for (int64_t i = 0; i < count; i++) {
        float gradient = gradients[i] + decay * values[i];
        momenta[i] += 0.1f * (gradient - momenta[i]);
        squares[i] = 0.999f * squares[i] + 0.001f * gradient * gradient;
        values[i] = kept * values[i] - size * momenta[i] / (sqrtf(squares[i]) / root + 1e-8f);
    }
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
        CannotCompileError: there is no compiler, it refuses, or nothing can be kept; and what
            to do.
    """
    try:
        return ctypes.CDLL(str(_kept(name, PRELUDE + source)))
    except subprocess.CalledProcessError as error:
        why = f"{_compiler()} refuses: {error.stderr}; install a C compiler (gcc)"
        raise CannotCompileError(why) from error
    except OSError as error:
        remedy = "; install a C compiler (gcc)" if found() is None else ""
        raise CannotCompileError(f"{error}{remedy}") from error


def _kept(name: str, source: str) -> Path:
    """Return the path of a source's library, made by this machine's compiler for its processor.

    Without a compiler, one that an earlier compiler made of the same source will do.
    """
    words = (source, *FLAGS, platform.machine(), _processor())
    stem = f"{name}-{_digest(*words)}"
    folder = _own_folder()
    by = found()
    if by is None and (made := sorted(folder.glob(f"{stem}-*.so"))):
        return made[0]
    kept = folder / f"{stem}-{_identity(by)}.so"
    with _one_at_a_time(folder):
        if not kept.exists():
            _compile(source, kept)
    return kept


def _compile(source: str, to: Path) -> None:
    with tempfile.TemporaryDirectory(dir=to.parent) as scratch:
        parts, made = Path(scratch) / "parts.o", Path(scratch) / "made.so"
        _cc(source, *FLAGS, "-x", "c", "-", "-o", str(parts))
        # Linked by itself: with -ffast-math GCC links code that lets the whole process flush
        # small numbers to zero as soon as the library is loaded.
        _cc("", "-shared", str(parts), "-o", str(made), "-lm")
        made.replace(to)  # whole, or not there


def _own_folder() -> Path:
    """Return the cache folder; what lies where others may write is not loaded into a process."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coterie"
    except RuntimeError:  # a user of whom the system knows nothing, as some containers have them
        raise CannotCompileError("there is no home folder; set XDG_CACHE_HOME") from None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotCompileError(
            f"the cache folder {folder} cannot be made: {error.strerror}; set XDG_CACHE_HOME to a "
            "folder that can be written"
        ) from None
    there = folder.stat()
    if there.st_uid != os.getuid() or there.st_mode & 0o022:
        raise CannotCompileError(
            f"{folder}: others may write there; make it your own (chmod 700), or set XDG_CACHE_HOME"
        )
    return folder


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process compile, and the others find what it made."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _identity(program: str | None) -> str:
    """Return what another version of a program differs in, without starting it."""
    if program is None:
        return "none"
    path = Path(program).resolve()
    there = path.stat()
    return _digest(str(path), str(there.st_size), str(there.st_mtime_ns))


def found() -> str | None:
    """Return the path of the compiler; None if there is none."""
    return shutil.which(_compiler())


def _compiler() -> str:
    return os.environ.get("CC", "cc")


def _cc(source: str, *words: str) -> None:
    command = [_compiler(), *words]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)  # noqa: S603


def instruction_set() -> str:
    """Return a digest of what compiled steps are made for; numbers may depend on it."""
    return _digest(platform.machine(), _processor())


def _processor() -> str:
    """Return what ``-march=native`` depends on, as Linux tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
