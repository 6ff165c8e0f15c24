"""Files of one kind, as bytes, arrays or an image; one that is damaged is named."""

import gzip
import io
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from common.data.rows import Array
from common.errors import DataError


def damaged(path: Path, why: object) -> DataError:
    """Return the error for a file that is there but does not hold what it should."""
    return DataError(f"{path.absolute()} cannot be read: {why}; replace the file")


def read_bytes(path: Path) -> bytes:
    """Return what a file holds, unpacked if it is a ``.gz``."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
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
    """Return one image (channels, height, width)."""
    try:
        with Image.open(source) as image:
            mode, pixels = image.mode, np.asarray(image)
    # Pillow reports some broken PNG chunks as SyntaxError, and sizes that could fill the memory.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{what} cannot be read as an image: {error}; replace the file") from error
    if mode not in ("L", "RGB"):
        raise DataError(f"{what} has colour mode {mode}; save it as 8-bit grey or RGB")
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)
