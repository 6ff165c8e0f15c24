"""The hand-written steps of :mod:`client_app.dense` in C: one call is an epoch of a client.

Matrix products go to the BLAS that comes with SciPy, through the pointers it publishes for Cython;
what lies between them is plain loops. Without a compiler the NumPy steps do the same.
"""

import ctypes
import functools
import logging
from collections.abc import Callable

import numpy as np

from client_app import compiler
from client_app.compiler import CannotCompileError, array_of

log = logging.getLogger("coterie")

__all__ = ["Train", "load"]

Train = Callable[..., float]
"""``coterie_train`` below with its BLAS; takes NumPy arrays, and refuses wrong types."""

_SOURCE = r"""
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
        double loss = 0;
        for (int i = 0, classes = widths[layers]; i < size; i++)
            loss += row_loss(classes, 1, values_of[layers] + (int64_t)i * classes,
                             labels[batch[i]], 1.0f / size,
                             deltas_of[layers] + (int64_t)i * classes);
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
        move(parameters, values, gradients, momenta, learning_rate, momentum, decay, anchor,
             strength, step % repeats == repeats - 1 ? follow : 0);
    }
    restore(before);
    return total;
}
"""
_GEMM = b"void (char *, char *, int *, int *, int *, __pyx_t_5scipy_6linalg_11cython_blas_s *"
MOST_LAYERS = 64


_FLOATS, _INTS = array_of(np.float32), array_of(np.int64)
_ARGUMENTS = [
    *(ctypes.c_void_p, ctypes.c_int, array_of(np.int32), _FLOATS, _INTS, _INTS),
    *(ctypes.c_int64, ctypes.c_int),
    *(_FLOATS, _FLOATS, _FLOATS, _FLOATS, _FLOATS),
    *(array_of(np.int16), _FLOATS, array_of(np.int16)),
    *(ctypes.c_float, ctypes.c_float, ctypes.c_float),
    *(_FLOATS, ctypes.c_float, ctypes.c_int, ctypes.c_float),
]


@functools.cache
def load() -> Train | None:
    """Return the compiled steps; None, said once, where they cannot be had on this machine."""
    try:
        function = compiler.library("dense", _SOURCE).coterie_train
        product = _sgemm()
    except CannotCompileError as error:
        log.info("dense networks train with NumPy, not with compiled steps: %s", error)
        return None
    function.restype, function.argtypes = ctypes.c_double, _ARGUMENTS
    return functools.partial(function, product)


def _sgemm() -> int:
    """Return the address of SciPy's ``sgemm``; raise if its signature is another."""
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__["sgemm"]
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
    signature = name_of(capsule)
    if not signature.startswith(_GEMM):
        raise CannotCompileError(f"SciPy's sgemm has the signature {signature.decode()}")
    address = pointer_of(capsule, signature)
    assert isinstance(address, int)
    return address
