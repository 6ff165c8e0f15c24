"""Own data of a user, an ``.npz``, a ``.csv`` or a folder of images, read into `Rows`."""

import csv
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.data.files import damaged, read_arrays, read_image
from common.data.rows import Array, IntArray, Rows
from common.errors import DataError, did_you_mean

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")


def read_npz(path: Path) -> Rows:
    """Return the rows of an ``.npz`` with X and y, optionally client and test (0 or 1).

    X is (n, features), or images: (n, height, width), (n, channels, height, width) or
    (n, height, width, channels) with 1 or 3 channels; where ``kind`` says "windows", signals:
    (n, channels, samples). Values of y and client may be any whole
    numbers or texts; classes and clients are numbered in their sorted order.
    """
    archive = read_arrays(path, "X", "y")
    x = _channels_first(archive, path)
    class_names, y = _numbered_values(archive["y"], f"{path.name}: y")
    test = _test_marks(archive["test"], path) if "test" in archive else None
    if "client" not in archive:
        return Rows(x, y, class_names, test=test)
    owner_names, owner = _numbered_values(archive["client"], f"{path.name}: client")
    return Rows(x, y, class_names, owner, owner_names, test)


def _channels_first(archive: Mapping[str, Array], path: Path) -> Array:
    x, kind = archive["X"], str(archive.get("kind", "images"))
    if x.dtype.kind not in "buif":
        raise DataError(f"{path.name}: X holds {x.dtype}; expected numbers")
    if kind not in ("images", "windows"):
        raise DataError(f"{path.name}: kind is {kind!r}; expected windows, or images or no kind")
    if kind == "windows":
        if x.ndim != 3:
            raise DataError(
                f"{path.name}: X has shape {x.shape}; windows are (n, channels, samples)"
            )
        return x
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 2 or (x.ndim == 4 and x.shape[1] in (1, 3)):
        return x
    if x.ndim == 4 and x.shape[3] in (1, 3):
        return x.transpose(0, 3, 1, 2)
    raise DataError(
        f"{path.name}: X has shape {x.shape}; expected (n, features), (n, height, width), or "
        "images with 1 or 3 channels first or last"
    )


def _numbered_values(values: Array, what: str) -> tuple[tuple[str, ...], IntArray]:
    """Return the sorted distinct values as texts, and each value's number among them."""
    whole = values.dtype.kind in "buiU"
    if values.dtype.kind == "f":
        whole = bool(np.isfinite(values).all() and (np.trunc(values) == values).all())
    if values.ndim != 1 or not whole:
        raise DataError(
            f"{what} has shape {values.shape} and type {values.dtype}; "
            "expected one whole number or text per row"
        )
    distinct, numbers = np.unique(values, return_inverse=True)
    if distinct.dtype.kind in "bf":
        distinct = distinct.astype(np.int64)
    return tuple(map(str, distinct)), numbers.astype(np.int64)


def _test_marks(test: Array, path: Path) -> NDArray[np.bool_]:
    if test.ndim != 1 or not np.isin(test, (0, 1)).all():
        raise DataError(f"{path.name}: test must hold one 0 (train) or 1 (test) per row")
    return test.astype(bool)


def read_csv(path: Path, label_column: str, client_column: str) -> Rows:
    """Return the rows of a ``.csv`` with a header; `client_column` may be empty.

    Every other column is a feature and must hold a number on every line. Labels and clients may be
    whole numbers or texts, numbered in their sorted order.
    """
    header, lines, columns = _csv_columns(path)
    special = [_column(path, header, "label-column", label_column)]
    if client_column:
        special.append(_column(path, header, "client-column", client_column))
    features = [number for number in range(len(header)) if number not in special]
    if not features:
        raise DataError(f"{path.name}: no feature columns besides {', '.join(header)}")
    named = [f"{path.name}: column {name!r}" for name in header]
    x = np.stack([_csv_numbers(columns[c], lines, named[c]) for c in features], axis=1)
    values = [_csv_values(columns[c], lines, named[c]) for c in special]
    class_names, y = values[0]
    owner_names, owner = values[1] if client_column else ((), None)
    names = tuple(header[number] for number in features)
    return Rows(x, y, class_names, owner, owner_names, columns=names)


def read_new_rows(path: Path, columns: tuple[str, ...]) -> tuple[Array, tuple[str, ...]]:
    """Return the features of an ``.npz`` or a ``.csv`` without labels, and what was passed over.

    Of an ``.npz`` that is X. Of a ``.csv`` it is the columns of these names, wherever they stand;
    the names of all others come second.

    Raises:
        DataError: a file that is missing, damaged or unfit, or lacks a column.
    """
    if path.suffix.lower() == ".npz":
        return _channels_first(read_arrays(path, "X"), path), ()
    if path.suffix.lower() != ".csv":
        raise DataError(f"{path} is no .csv or .npz")
    if not columns:
        raise DataError(
            f"{path.name}: the run's columns have no known names; bring an .npz with its rows as X"
        )
    header, lines, cells = _csv_columns(path)
    numbers = [_column(path, header, "column", name) for name in columns]
    x = [_csv_numbers(cells[c], lines, f"{path.name}: column {header[c]!r}") for c in numbers]
    return np.stack(x, axis=1), tuple(name for name in header if name not in columns)


def _csv_columns(path: Path) -> tuple[list[str], list[int], list[tuple[str, ...]]]:
    """Return the header, each row's line number in the file, and the cells of each column."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            records = [(reader.line_num, [c.strip() for c in cells]) for cells in reader if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise damaged(path, error) from error
    if len(records) < 2:
        raise DataError(f"{path.absolute()} needs a header line and at least one row")
    (_, header), *rows = records
    if len(set(header)) < len(header):
        raise DataError(f"{path.name}: the header names a column twice: {', '.join(header)}")
    for line, cells in rows:
        if len(cells) != len(header):
            raise DataError(
                f"{path.name}: line {line} has {len(cells)} values, the header {len(header)}"
            )
    return header, [line for line, _ in rows], [*zip(*(cells for _, cells in rows), strict=True)]


def _column(path: Path, header: list[str], setting: str, name: str) -> int:
    if name not in header:
        raise DataError(f"{setting}={name} is no column of {path.name}{did_you_mean(name, header)}")
    return header.index(name)


def _csv_numbers(column: tuple[str, ...], lines: list[int], what: str) -> NDArray[np.float64]:
    numbers = np.empty(len(column))
    for row, cell in enumerate(column):
        try:
            numbers[row] = float(cell)
        except ValueError:
            numbers[row] = math.nan
        if not math.isfinite(numbers[row]):
            raise DataError(
                f"{what} holds {cell!r} on line {lines[row]}, not a number; "
                "fill it in, or drop the line or the column"
            )
    return numbers


def _csv_values(
    column: tuple[str, ...], lines: list[int], what: str
) -> tuple[tuple[str, ...], IntArray]:
    if "" in column:
        raise DataError(f"{what} is empty on line {lines[column.index('')]}; fill it in")
    try:
        return _numbered_values(np.array([int(cell) for cell in column], np.int64), what)
    except (ValueError, OverflowError):  # not all whole numbers: texts
        return _numbered_values(np.array(column), what)


def read_image_folder(path: Path) -> Rows:
    """Return the png and jpg images of class sub-folders, alone or inside train/ and test/.

    All grey or all RGB and of one size; classes are numbered in the sorted order of their names.
    An empty class folder keeps its number; hidden folders and other files are passed over.
    """
    has_split = {folder.name for folder in _subfolders(path)} == {"train", "test"}
    parts = [path / "train", path / "test"] if has_split else [path]
    classes = tuple(folder.name for folder in _subfolders(parts[0]))
    found = [item for part in parts for item in _labelled_images(part, classes)]
    if not found:
        raise DataError(f"{path.absolute()}: no {'/'.join(IMAGE_SUFFIXES)} in class sub-folders")
    images = [read_image(file, str(file)) for file, _, _ in found]
    for image, (file, _, _) in zip(images, found, strict=True):
        if image.shape != images[0].shape:
            raise DataError(
                f"{file} is {_extent(image)}, {found[0][0]} is {_extent(images[0])}; "
                "bring all images to one size and colour mode"
            )
    y = np.array([label for _, label, _ in found], np.int64)
    test = np.array([part == "test" for _, _, part in found]) if has_split else None
    return Rows(np.stack(images), y, classes, test=test)


def _labelled_images(part: Path, classes: tuple[str, ...]) -> list[tuple[Path, int, str]]:
    items = []
    for folder in _subfolders(part):
        if folder.name not in classes:
            raise DataError(f"{folder} has no counterpart in train/; classes: {', '.join(classes)}")
        files = sorted(f for f in folder.iterdir() if f.suffix.lower() in IMAGE_SUFFIXES)
        items += [(file, classes.index(folder.name), part.name) for file in files]
    return items


def _subfolders(path: Path) -> list[Path]:
    return sorted(f for f in path.iterdir() if f.is_dir() and not f.name.startswith("."))


def _extent(image: Array) -> str:
    channels, height, width = image.shape
    return f"{width}x{height} {'grey' if channels == 1 else 'RGB'}"
