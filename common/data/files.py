"""Files of one kind, as bytes, arrays or an image; one that is damaged is named."""

import gzip
import io
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from common.data.rows import Array
from common.errors import DataError


def damaged(path: Path, why: object) -> DataError:
    """Return the error for a file that is there but does not hold what it should."""
    return DataError(f"{path.absolute()} cannot be read: {why}; replace the file")


def read_bytes(path: Path) -> bytes:
    """Return what a file holds, unpacked if it is a ``.gz``."""
    try:
        return (
            gzip.decompress(path.read_bytes())
            if path.suffix.lower() == ".gz"
            else path.read_bytes()
        )
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, str(error)) from error


def read_arrays(path: Path, *required: str) -> dict[str, Array]:
    """Return all arrays of an ``.npz``, of which `required` must be there; pickles are refused."""
    try:
        # Opened here, because np.load leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except Exception as error:  # damage surfaces in whatever part of the parser it reaches
        raise damaged(path, error) from error
    for key in required:
        if key not in arrays:
            raise DataError(f"{path.absolute()} has no array {key!r}; it holds {', '.join(arrays)}")
    return arrays


def read_image(source: Path | io.BytesIO, what: str) -> NDArray[np.uint8]:
    """Return one image (channels, height, width), grey or RGB, turned as its file says.

    Cameras store what they see and beside it, in EXIF, how it is to be held; viewers do that.

    Raises:
        DataError: it is damaged, or of a palette, with transparency, in CMYK or of 16 bits a
            channel: how it becomes grey or RGB is for its owner to say.
    """
    try:
        with Image.open(source) as image:
            mode = image.mode
            # Pillow cuts 16 bits of three channels to 8 and calls it RGB.
            if mode == "RGB" and any("16" in str(tile[3]) for tile in image.tile):
                mode = "RGB of 16 bits"
            turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
            pixels = np.asarray(image if turn is None else image.transpose(turn))
    # Pillow reports some broken PNG chunks as SyntaxError, and sizes that could fill the memory.
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise DataError(f"{what} cannot be read as an image: {error}; replace the file") from error
    if mode not in ("L", "RGB"):
        raise DataError(f"{what} has colour mode {mode}; save it as 8-bit grey or RGB")
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What sets an image upright, by EXIF's number of its orientation."""


def one_shape(
    images: Sequence[NDArray[np.uint8]], names: Sequence[str]
) -> Sequence[NDArray[np.uint8]]:
    """Return images (channels, height, width); :class:`DataError` names the first that differs."""
    for image, name in zip(images, names, strict=True):
        if image.shape != images[0].shape:
            raise DataError(
                f"{name} is {extent(image)}, {names[0]} is {extent(images[0])}; "
                "bring all images to one size and colour mode"
            )
    return images


def extent(image: NDArray[np.uint8]) -> str:
    """Return how large an image is and of which colours, as ``16x9 grey``."""
    channels, height, width = image.shape
    return f"{width}x{height} {'grey' if channels == 1 else 'RGB'}"
