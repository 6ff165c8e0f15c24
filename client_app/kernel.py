"""The hand-written steps of :mod:`client_app.dense` in C: one call is an epoch of a client.

Matrix products go to the BLAS that comes with SciPy, through the pointers it publishes for Cython;
what lies between them is plain loops. It is compiled by the machine's own C compiler the first time
it is used and kept in the user's cache folder. Without a compiler the NumPy steps do the same.

The source is a text in here and no file beside: Flower's app bundles carry Python files only.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

log = logging.getLogger("coterie")

__all__ = ["Train", "load"]

Train = Callable[..., float]
"""``coterie_train`` below with its BLAS; takes NumPy arrays, and refuses wrong types."""

_SOURCE = r"""
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef void (*gemm)(char *, char *, int *, int *, int *, float *, float *, int *, float *, int *,
                     float *, float *, int *);

enum { MOST_LAYERS = 64 };

/* All matrices are row-major; BLAS sees their transposes. */
static void times_transposed(gemm product, int rows, int columns, int inner, float *a, float *b,
                             float *out) { /* out += a b' */
    float one = 1;
    product("T", "N", &columns, &rows, &inner, &one, b, &inner, a, &inner, &one, out, &columns);
}

static void times(gemm product, int rows, int columns, int inner, float *a, float *b, float *out) {
    float one = 1, zero = 0; /* out = a b */
    product("N", "N", &columns, &rows, &inner, &one, b, &columns, a, &inner, &zero, out, &columns);
}

static void transposed_times(gemm product, int rows, int columns, int inner, float *a, float *b,
                             float *out) { /* out = a' b */
    float one = 1, zero = 0;
    product("N", "T", &columns, &rows, &inner, &one, b, &columns, a, &rows, &zero, out, &columns);
}

/* Summed cross-entropy of a batch; delta becomes (softmax - one-hot) / size. */
static double loss_of(int size, int classes, const float *logits, const int64_t *labels,
                      const int64_t *batch, float *delta) {
    double loss = 0;
    float share = 1.0f / size;
    for (int i = 0; i < size; i++, logits += classes, delta += classes) {
        int64_t label = labels[batch[i]];
        float largest = logits[0], sum = 0;
        for (int j = 1; j < classes; j++) largest = logits[j] > largest ? logits[j] : largest;
        for (int j = 0; j < classes; j++) sum += delta[j] = expf(logits[j] - largest);
        loss += logf(sum) - (logits[label] - largest);
        for (int j = 0; j < classes; j++) delta[j] = delta[j] / sum * share;
        delta[label] -= share;
    }
    return loss;
}

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

/* Passes once over `rows` rows in the order given; returns their summed loss. Buffers: activations
   and deltas hold `most` rows of every width. `bits` are the dropout draws of all steps end to end,
   15 per unit; a unit is kept where they are at least its layer's threshold. `strength` times the
   way from the anchor is added to each gradient; after `repeats` steps on a batch, of which the
   first gives the loss, the anchor moves the share `follow` of its way to the values. */
double coterie_train(gemm product, int layers, const int *widths, const float *inputs,
                     const int64_t *labels, const int64_t *order, int64_t rows, int most,
                     float *values, float *gradients, float *momenta, float *activations,
                     float *deltas, const int16_t *bits, const float *scales,
                     const int16_t *thresholds, float learning_rate, float momentum, float decay,
                     float *anchor, float strength, int repeats, float follow) {
    float *weights[MOST_LAYERS], *biases[MOST_LAYERS], *by_weights[MOST_LAYERS];
    float *by_biases[MOST_LAYERS], *values_of[MOST_LAYERS + 1], *deltas_of[MOST_LAYERS + 1];
    const int16_t *bits_of[MOST_LAYERS];
    int64_t parameters = 0, units = 0;
    double total = 0;
    unsigned before = flush_to_zero();
    for (int l = 0; l <= layers; l++) {
        values_of[l] = activations + units;
        deltas_of[l] = deltas + units;
        units += (int64_t)most * widths[l];
        if (l == layers) break;
        weights[l] = values + parameters;
        by_weights[l] = gradients + parameters;
        parameters += (int64_t)widths[l] * widths[l + 1];
        biases[l] = values + parameters;
        by_biases[l] = gradients + parameters;
        parameters += widths[l + 1];
    }
    for (int64_t step = 0, at = 0; at < rows; at = ++step / repeats * most) {
        int size = rows - at < most ? (int)(rows - at) : most;
        const int64_t *batch = order + at;
        for (int i = 0; i < size; i++)
            memcpy(values_of[0] + (int64_t)i * widths[0], inputs + batch[i] * widths[0],
                   sizeof(float) * widths[0]);
        for (int l = 0; l < layers; l++) {
            int wide = widths[l + 1], count = size * wide;
            float *out = values_of[l + 1];
            for (int i = 0; i < size; i++)
                memcpy(out + (int64_t)i * wide, biases[l], sizeof(float) * wide);
            times_transposed(product, size, wide, widths[l], values_of[l], weights[l], out);
            if (l == layers - 1) break;
            /* so written that NaN stays NaN, and the guard sees it */
            for (int i = 0; i < count; i++) out[i] = out[i] < 0 ? 0 : out[i];
            bits_of[l] = bits;
            if (scales[l] == 1) continue;
            for (int i = 0; i < count; i++) out[i] *= bits[i] >= thresholds[l] ? scales[l] : 0;
            bits += (count + 3) / 4 * 4; /* a word holds four units */
        }
        double loss =
            loss_of(size, widths[layers], values_of[layers], labels, batch, deltas_of[layers]);
        if (step % repeats == 0) total += loss;
        for (int l = layers - 1; l >= 0; l--) {
            int wide = widths[l + 1], count = size * widths[l];
            float *delta = deltas_of[l + 1], *below = deltas_of[l], *value = values_of[l];
            transposed_times(product, wide, widths[l], size, delta, value, by_weights[l]);
            memset(by_biases[l], 0, sizeof(float) * wide);
            for (int i = 0; i < size; i++)
                for (int j = 0; j < wide; j++) by_biases[l][j] += delta[(int64_t)i * wide + j];
            if (l == 0) break;
            times(product, size, widths[l], wide, delta, weights[l], below);
            for (int i = 0; i < count; i++) below[i] *= value[i] > 0;
            if (scales[l - 1] == 1) continue;
            for (int i = 0; i < count; i++)
                below[i] *= bits_of[l - 1][i] >= thresholds[l - 1] ? scales[l - 1] : 0;
        }
        if (strength > 0)
            for (int64_t i = 0; i < parameters; i++)
                gradients[i] += strength * (values[i] - anchor[i]);
        for (int64_t i = 0; i < parameters; i++) {
            momenta[i] = momentum * momenta[i] + gradients[i] + decay * values[i];
            values[i] -= learning_rate * momenta[i];
        }
        if (follow > 0 && step % repeats == repeats - 1)
            for (int64_t i = 0; i < parameters; i++)
                anchor[i] += follow * (values[i] - anchor[i]);
    }
    restore(before);
    return total;
}
"""
_FLAGS = ("-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-fPIC", "-c")
_GEMM = b"void (char *, char *, int *, int *, int *, __pyx_t_5scipy_6linalg_11cython_blas_s *"
MOST_LAYERS = 64


def _array(dtype: type) -> Any:
    return np.ctypeslib.ndpointer(dtype=dtype, flags="C_CONTIGUOUS")


_FLOATS, _INTS = _array(np.float32), _array(np.int64)
_ARGUMENTS = [
    *(ctypes.c_void_p, ctypes.c_int, _array(np.int32), _FLOATS, _INTS, _INTS),
    *(ctypes.c_int64, ctypes.c_int),
    *(_FLOATS, _FLOATS, _FLOATS, _FLOATS, _FLOATS, _array(np.int16), _FLOATS, _array(np.int16)),
    *(ctypes.c_float, ctypes.c_float, ctypes.c_float),
    *(_FLOATS, ctypes.c_float, ctypes.c_int, ctypes.c_float),
]


@functools.cache
def load() -> Train | None:
    """Return the compiled steps; None, said once, where they cannot be had on this machine."""
    try:
        function = ctypes.CDLL(str(_compiled())).coterie_train
        product = _sgemm()
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        log.info("dense networks train with NumPy, not with compiled steps: %s", reason)
        return None
    function.restype, function.argtypes = ctypes.c_double, _ARGUMENTS
    return functools.partial(function, product)


def _compiled() -> Path:
    """Return the shared library for this source and processor, made if it is not there yet."""
    words = (_SOURCE, *_FLAGS, platform.machine(), _processor())
    name = hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coterie"
    library = folder / f"dense-{name}.so"
    if not library.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            parts, made = Path(scratch) / "dense.o", Path(scratch) / "dense.so"
            _cc(*_FLAGS, "-x", "c", "-", "-o", str(parts))
            # Linked by itself: with -ffast-math GCC links code that lets the whole process flush
            # small numbers to zero as soon as the library is loaded.
            _cc("-shared", str(parts), "-o", str(made), "-lm")
            made.replace(library)  # another process may do the same: whole either way
    return library


def _cc(*words: str) -> None:
    command = [os.environ.get("CC", "cc"), *words]
    subprocess.run(command, input=_SOURCE, text=True, check=True, capture_output=True)  # noqa: S603


def _processor() -> str:
    """Return what ``-march=native`` depends on, as Linux tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _sgemm() -> int:
    """Return the address of SciPy's ``sgemm``; :class:`OSError` if its signature is another."""
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__["sgemm"]
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
    signature = name_of(capsule)
    if not signature.startswith(_GEMM):
        raise OSError(f"SciPy's sgemm has the signature {signature.decode()}")
    address = pointer_of(capsule, signature)
    assert isinstance(address, int)
    return address
