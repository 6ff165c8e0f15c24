"""Cells: texts of a table's column become numbers, dates or values, and what is missing null.

A number is what the decimal notation of every program writes: digits, at most one decimal mark, an
exponent. ``1_0`` is none, though Python takes it for ten.
"""

import re
import unicodedata
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

__all__ = [
    "DATE_FORMATS",
    "MISSING_MARKS",
    "array_of",
    "dates",
    "in_one_form",
    "is_missing",
    "is_number",
    "is_temporal",
    "is_text",
    "meant",
    "number",
    "number_cells",
    "numbers",
    "plain_numbers",
    "trimmed",
    "values",
    "without",
]

MISSING_MARKS = frozenset(
    {"", "?", "-", "--", ".", "NA", "N/A", "#N/A", "na", "n/a", "NaN", "nan", "NAN"}
    | {"NULL", "null", "NaT", "<NA>"}
)
"""What is usually written where nothing is known."""

DATE_FORMATS = (
    *("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S"),
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d"),
)
"""Ways to write a date, the likelier first."""

_NUMBER = r"^[+-]?(\d+\{0}?\d*|\{0}\d+)([eE][+-]?\d+)?$"
_ANY_NUMBER = re.compile(r"[+-]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][+-]?[0-9]+)?")
_INFINITE = r"^[+-]?(?i:inf(inity)?)$"
_DAY_SECONDS = 86400.0
_NO_ASCII = 0x80  # the first byte of what is none
# What is not seen at the ends of a cell: Unicode's spaces, and marks of width zero.
_AROUND = "".join(
    letter
    for letter in map(chr, range(0x10000))
    if letter.isspace() or letter in "\u200b\u200e\u200f\u2060\ufeff"
)


def is_text(column: Any) -> bool:
    """Return whether a column holds texts."""
    return bool(pa.types.is_string(column.type) or pa.types.is_null(column.type))


def is_temporal(column: Any) -> bool:
    """Return whether a column holds dates by its type."""
    return bool(pa.types.is_temporal(column.type))


def in_one_form(text: str) -> str:
    r"""Return a text with its letters composed (NFC), and without spaces or marks around it.

    >>> in_one_form("ma\u0308nnlich\xa0") == "m\xe4nnlich"
    True
    """
    return unicodedata.normalize("NFC", text).strip(_AROUND)


def trimmed(column: Any) -> Any:
    """Return a column of texts, each as :func:`in_one_form` has it; the usual one is not copied."""
    letters = [
        np.frombuffer(chunk.buffers()[2], np.uint8) for chunk in column.chunks if chunk.buffers()[2]
    ]  # of all its cells, in a row
    if any((each >= _NO_ASCII).any() for each in letters):
        column = pc.utf8_normalize(column, form="NFC")
        return pc.utf8_trim(column, characters=_AROUND)
    if any((each <= ord(" ")).any() for each in letters):
        return pc.utf8_trim(column, characters=_AROUND)
    return column


def is_missing(column: Any, marks: Collection[str] = MISSING_MARKS) -> Any:
    """Return which cells (n,) of a column of texts stand for a missing value."""
    return pc.is_in(column, value_set=pa.array(sorted(marks), pa.string()))


def without(column: Any, marks: Collection[str]) -> Any:
    """Return a column of texts with null in the place of the marks."""
    if not is_text(column) or not marks:
        return column
    return pc.if_else(is_missing(column, marks), pa.scalar(None, pa.string()), column)


def meant(column: Any, same: Mapping[str, str]) -> Any:
    """Return a column of texts with what is meant in the place of what is written."""
    if not same:
        return column
    place = pc.index_in(column, value_set=pa.array(list(same), pa.string()))
    return pc.coalesce(pc.take(pa.array(list(same.values()), pa.string()), place), column)


def values(column: Any) -> Any:
    """Return a column's cells as texts that are equal where the values are: 1.0 and 01 are 1.

    >>> values(pa.array(["1.0", "01", "1.5", "b"])).to_pylist()
    ['1', '1', '1.5', 'b']
    """
    if not is_text(column):
        column = pc.cast(column, pa.float64(), safe=False) if not is_temporal(column) else column
        column = pc.cast(column, pa.string())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode()
    plain = pa.array([_plain(text) for text in encoded.dictionary.to_pylist()], pa.string())
    return pc.take(plain, encoded.indices)


def is_number(text: str) -> bool:
    """Return whether a text is a finite number, with a decimal point or comma."""
    return _ANY_NUMBER.fullmatch(text) is not None


def number(text: str) -> float:
    """Return the number that such a text stands for."""
    return float(text.replace(",", "."))


def _plain(text: str) -> str:
    if not is_number(text):
        return " ".join(text.split())  # a no-break space inside is a space
    found = number(text)
    return str(int(found)) if found.is_integer() and abs(found) < 1e15 else text


def number_cells(column: Any, decimal: str = ".") -> Any:
    """Return which cells (n,) of a column of texts are numbers or infinite; null stays null."""
    finite = pc.match_substring_regex(column, _NUMBER.format(decimal))
    return pc.or_(finite, pc.match_substring_regex(column, _INFINITE))


def plain_numbers(column: Any) -> NDArray[np.float64] | None:
    """Return the numbers (n,) of a column of texts that holds nothing else, else None.

    The usual case, and the quickest.
    """
    try:
        found = array_of(pc.cast(column, pa.float64()))
    except pa.ArrowInvalid:
        return None
    return found if np.isfinite(found).all() else None


def numbers(column: Any, decimal: str = ".") -> NDArray[np.float64]:
    """Return a column's numbers (n,), NaN where there is none; infinite ones stay.

    True is 1; a date is its days since 1970-01-01.
    """
    if not is_text(column):
        return _typed_numbers(column)
    if decimal == ",":
        column = pc.replace_substring(_kept(column, decimal), ",", ".")
    try:
        return array_of(pc.cast(column, pa.float64()))
    except pa.ArrowInvalid:
        return array_of(pc.cast(_kept(column, "."), pa.float64()))


def _kept(column: Any, decimal: str) -> Any:
    """Return a column of texts with null in the place of what is no number."""
    return pc.if_else(number_cells(column, decimal), column, pa.scalar(None, pa.string()))


def _typed_numbers(column: Any) -> NDArray[np.float64]:
    if is_temporal(column):
        return array_of(_seconds(column)) / _DAY_SECONDS
    return array_of(pc.cast(column, pa.float64(), safe=False))


def dates(column: Any, written: str) -> NDArray[np.float64]:
    """Return a column's dates (n,) in days since 1970-01-01, NaN where a cell is no such date.

    >>> dates(pa.array(["1.2.1970", "soon"]), "%d.%m.%Y").tolist()
    [31.0, nan]
    """
    if is_text(column):
        column = pc.strptime(column, format=written, unit="s", error_is_null=True)
    return _typed_numbers(column)


def _seconds(column: Any) -> Any:
    zone = column.type.tz if pa.types.is_timestamp(column.type) else None
    whole = pc.cast(column, pa.timestamp("s", tz=zone), safe=False)
    return pc.cast(pc.cast(whole, pa.int64()), pa.float64())


def array_of(column: Any) -> NDArray[np.float64]:
    """Return a column of numbers (n,), NaN where it is null."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    found: NDArray[np.float64] = column.to_numpy(zero_copy_only=False)
    return found
