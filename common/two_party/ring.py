"""Ring of integers modulo 2^64 in NumPy arrays: fixed point, exact matrix products, masks.

NumPy multiplies integer matrices entry by entry. Here each factor is cut into limbs of 22 bits,
whose products a floating-point matrix product adds up without rounding, so that BLAS does the work.
"""

import os
from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from common.errors import DataError

__all__ = ["FRACTION_BITS", "Words", "decode", "encode", "expand", "product", "random_words"]

Words: TypeAlias = NDArray[np.uint64]
"""Elements of Z_2^64; negative numbers are their complements."""

FRACTION_BITS = 24
"""f: a number x is held as the integer nearest to x * 2^f."""

_LIMB_BITS = 22
_LIMB = np.uint64((1 << _LIMB_BITS) - 1)
# Inner entries added up in one floating-point product: 2 * 256 products of two 22-bit limbs, or 256
# of them and 512 with a 20-bit limb, stay within 2^53, and so does every sum on the way.
_BLOCK = 256


def encode(values: NDArray[np.floating[Any]]) -> Words:
    """Return numbers in fixed point, each within 2^-25 of its value.

    Raises:
        DataError: a value that is not finite, or from 2^38 in size on, where a word ends.
    """
    units = np.rint(np.asarray(values, dtype=np.float64) * (1 << FRACTION_BITS))
    if not (np.abs(units) < 2.0**62).all():
        raise DataError("a value is not finite, or too large for fixed point")
    return units.astype(np.int64).view(np.uint64)


def decode(words: Words, fraction_bits: int = FRACTION_BITS) -> NDArray[np.float64]:
    """Return the numbers that words hold; products of two numbers have 2f fraction bits."""
    return np.ldexp(words.view(np.int64).astype(np.float64), -fraction_bits)


def product(left: Words, right: Words) -> Words:
    """Return the matrix product of (n, d) and (d, m) modulo 2^64, exactly: (n, m).

    >>> left, right = encode(np.array([[0.5, -2.0]])), encode(np.array([[4.0], [0.25]]))
    >>> decode(product(left, right), 2 * FRACTION_BITS).tolist()
    [[1.5]]
    """
    shape = (left.shape[0], right.shape[1])
    total, summed = np.zeros(shape, dtype=np.uint64), np.empty(shape)
    words = np.empty(shape, dtype=np.int64)
    lefts, rights = _limbs(left), _limbs(right)
    for place in (2, 1, 0):  # limbs whose places add up to 3 or more meet above bit 64
        total <<= np.uint64(_LIMB_BITS)
        for start in range(0, left.shape[1], _BLOCK):
            inner = slice(start, start + _BLOCK)
            # Sum over i of limb i on the left and limb place - i on the right, as one product.
            rows = np.hstack([limb[:, inner] for limb in lefts[: place + 1]])
            columns = np.vstack([limb[inner] for limb in rights[place::-1]])
            np.matmul(rows, columns, out=summed)
            np.copyto(words, summed, casting="unsafe")  # below 2^53, and whole
            total += words.view(np.uint64)
    return total


def _limbs(words: Words) -> list[NDArray[np.float64]]:
    """Return the three limbs of every word, the lowest first; the last has 20 bits."""
    shifts = (np.uint64(_LIMB_BITS * index) for index in range(3))
    # Converted as signed numbers, which they are too: processors do that several times as fast.
    return [((words >> shift) & _LIMB).view(np.int64).astype(np.float64) for shift in shifts]


def expand(seed: bytes, *shapes: tuple[int, ...]) -> list[Words]:
    """Return uniform words of some shapes that a seed determines: AES-256 in counter mode.

    Args:
        seed: 32 bytes that are expanded this once, so that the counter may start at 0.
        shapes: of the arrays, which follow each other in one stream.
    """
    stream = Cipher(AES(seed), CTR(bytes(16))).encryptor()
    sizes = [8 * int(np.prod(shape)) for shape in shapes]
    return [
        np.frombuffer(stream.update(bytes(size)), dtype="<u8").astype(np.uint64).reshape(shape)
        for size, shape in zip(sizes, shapes, strict=True)
    ]


def random_words(shape: tuple[int, ...]) -> Words:
    """Return uniform words from the operating system's generator."""
    words = np.frombuffer(os.urandom(8 * int(np.prod(shape))), dtype=np.uint64)
    return words.reshape(shape)
