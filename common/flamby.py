"""Reads data sets in the folders that FLamby's own scripts make: several hospitals, one task.

Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in
Realistic Healthcare Settings" (2022). Of FLamby's repository one table per data set is needed
beside its folder; docs/data.md shows the layouts.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError, did_you_mean
from common.readers import DataFolder, IntArray, Rows, damaged, read_image

Lines = list[dict[str, str]]

ISIC_CLASSES: Final = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
ISIC_CENTRES: Final = (
    *("bcn", "ham-vidir-molemax", "ham-vidir-modern"),
    *("ham-rosendahl", "msk", "ham-vienna-dias"),
)
ISIC_SIDE: Final = 200
"""Pixels of the square that FLamby cuts out of an image's middle before a model sees it."""

_ISIC_TABLE = "train_test_split"
_ISIC_IMAGES = "ISIC_2019_Training_Input_preprocessed"


def isic2019(folder: DataFolder) -> Rows:
    """Return ISIC 2019 from ``ISIC2019/``: skin lesions of six centres, eight classes."""
    (table,) = folder.files("isic2019", [f"ISIC2019/{_ISIC_TABLE}"])
    return isic2019_part(table.parent)


def isic2019_part(root: Path) -> Rows:
    """Return the images that a folder's own table lists, with its split and its centres."""
    table = root / _ISIC_TABLE
    lines = _lines(table, "image", "target", "center", "fold")
    y = _numbers(table, lines, "target", len(ISIC_CLASSES))
    centres = _numbers(table, lines, "center", len(ISIC_CENTRES))
    test = _folds(table, lines, "fold")
    images = np.empty((len(lines), 3, ISIC_SIDE, ISIC_SIDE), np.uint8)
    for row, line in enumerate(lines):
        images[row] = _middle(root / _ISIC_IMAGES / f"{line['image']}.jpg")
    here, owner = np.unique(centres, return_inverse=True)
    names = tuple(ISIC_CENTRES[centre] for centre in here)
    return Rows(images, y, ISIC_CLASSES, owner.astype(np.int64), names, test)


def _middle(path: Path) -> NDArray[np.uint8]:
    """Return the middle of an image, (3, ISIC_SIDE, ISIC_SIDE)."""
    if not path.is_file():
        raise DataError(
            f"there is no file {path}, which {_ISIC_TABLE} lists; run FLamby's resize_images.py, "
            "or take the line out"
        )
    image = read_image(path, str(path))
    channels, height, width = image.shape
    if channels != 3 or min(height, width) < ISIC_SIDE:
        raise DataError(
            f"{path} is {width}x{height} with {channels} channels; FLamby's resize_images.py "
            f"leaves RGB images of at least {ISIC_SIDE} pixels a side: run it"
        )
    top, left = (height - ISIC_SIDE) // 2, (width - ISIC_SIDE) // 2
    return image[:, top : top + ISIC_SIDE, left : left + ISIC_SIDE]


# --- tables ----------------------------------------------------------------------------------


def _lines(path: Path, *columns: str) -> Lines:
    """Return a table's lines by column; the columns named must be there, and filled."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; it is in FLamby's repository (docs/data.md)")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise damaged(path, error) from error
    if not lines:
        raise DataError(f"{path} needs a header line and at least one row")
    for column in columns:
        if column not in lines[0]:
            raise DataError(f"{path} has no column {column!r}; it has {', '.join(lines[0])}")
        empty = [number for number, line in enumerate(lines, start=2) if not line[column]]
        if empty:
            raise DataError(f"{path}: column {column!r} is empty on line {empty[0]}; fill it in")
    return lines


def _numbers(path: Path, lines: Lines, column: str, limit: int) -> IntArray:
    """Return a column of whole numbers from 0 to below ``limit``."""
    known = {str(number): number for number in range(limit)}
    return np.array(_known(path, lines, column, known), np.int64)


def _folds(path: Path, lines: Lines, column: str) -> NDArray[np.bool_]:
    return np.array(_known(path, lines, column, {"train": False, "test": True}))


def _known(path: Path, lines: Lines, column: str, known: dict[str, int]) -> Sequence[int]:
    for number, line in enumerate(lines, start=2):
        if line[column] not in known:
            raise DataError(
                f"{path}: line {number} has {column} {line[column]!r}"
                f"{did_you_mean(line[column], known)}"
            )
    return [known[line[column]] for line in lines]
