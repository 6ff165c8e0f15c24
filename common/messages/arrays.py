"""Arrays of a model as Flower carries them, in NumPy's own file format."""

import functools
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from common.errors import MessageError

Parameters = Mapping[str, np.ndarray]
"""A model's arrays by name, in the order of its state dict."""


def encode_arrays(parameters: Parameters) -> ArrayRecord:
    """Return a model as Flower carries it: each array in NumPy's own file format."""
    return ArrayRecord({name: _encode_array(value) for name, value in parameters.items()})


def decode_arrays(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Return a model's arrays, read-only views of the message's bytes."""
    return {name: _decode_array(name, value) for name, value in record.items()}


# Array(ndarray) and Array.numpy() spend more time on the .npy header than on the numbers; it
# depends on dtype and shape alone, so it is written and parsed once for each.


def _encode_array(value: np.ndarray) -> Array:
    name, header = _npy_header(value.dtype, value.shape)
    return Array(name, value.shape, "numpy.ndarray", header + value.tobytes())


@functools.lru_cache(maxsize=4096)
def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[str, bytes]:
    """Return the type's name and the header of an array."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": dtype.str, "fortran_order": False, "shape": shape}
    )
    return str(dtype), buffer.getvalue()


_NPY_PREFIX = 10  # magic, version and header length of format 1.0


def _decode_array(name: str, array: Array) -> np.ndarray:
    data = array.data
    if array.stype != "numpy.ndarray" or data[:8] != b"\x93NUMPY\x01\x00":
        raise MessageError(f"array {name!r} is not in NumPy's format 1.0")
    start = _NPY_PREFIX + int.from_bytes(data[8:10], "little")
    try:
        dtype, shape = _parse_npy_header(data[:start])
        return np.frombuffer(data, dtype, offset=start).reshape(shape)
    except ValueError as error:
        raise MessageError(f"array {name!r} cannot be read: {error}") from None


@functools.lru_cache(maxsize=4096)
def _parse_npy_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(
        io.BytesIO(header[8:]), max_header_size=10_000
    )
    if fortran_order or dtype.hasobject:
        raise ValueError(f"layout {dtype} (fortran_order={fortran_order}) is not accepted")
    return dtype, shape
