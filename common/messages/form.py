"""Form of a message: what any content must keep to, whoever sent it and whatever it is about.

Held against it before anything else looks at a message, on both sides, so that what is measured,
listed and decoded afterwards is of bounded size and can be read. What a certain message must hold
is said by its record, and by who asked for it.
"""

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from common.errors import MessageError
from common.messages.arrays import check_array
from common.messages.keys import ARRAYS, FIGURES, NOTE, RECORD, USAGE

__all__ = ["check_form"]

MOST_ARRAYS = 10_000
MOST_FIELDS = 64
MOST_NAME = 256
"""Characters of the name of an array or a field."""
MOST_TEXT = 1_000
"""Characters of one text."""
MOST_ENTRIES = 100_000
"""Of one list."""
MOST_BYTES = 65_536
"""Of one key, share or seed; longer data travel as arrays."""

_KINDS = {
    ARRAYS: ArrayRecord,
    RECORD: ConfigRecord,
    NOTE: ConfigRecord,
    USAGE: ConfigRecord,
    FIGURES: ConfigRecord,
}
_INT64 = range(-(2**63), 2**63)


def check_form(content: RecordDict) -> None:
    """Raise :class:`MessageError` if a content is not one that :mod:`common.messages` makes."""
    for key, record in content.items():
        kind = _KINDS.get(key)
        if kind is None or not isinstance(record, kind):
            raise MessageError(f"the message holds {key!r}, a {type(record).__name__}")
        if isinstance(record, ArrayRecord):
            _check_arrays(record)
        elif isinstance(record, ConfigRecord):
            _check_fields(key, record)


def _check_arrays(record: ArrayRecord) -> None:
    if len(record) > MOST_ARRAYS:
        raise MessageError(f"{len(record)} arrays, at most {MOST_ARRAYS} are accepted")
    for name, array in record.items():
        _check_name(name)
        check_array(name, array)


def _check_fields(key: str, record: ConfigRecord) -> None:
    if len(record) > MOST_FIELDS:
        raise MessageError(f"{key} has {len(record)} fields, at most {MOST_FIELDS} are accepted")
    for name, value in record.items():
        _check_name(name)
        entries = value if isinstance(value, list) else [value]
        if len(entries) > MOST_ENTRIES:
            raise MessageError(f"{name} has {len(entries)} entries, at most {MOST_ENTRIES} may be")
        for entry in entries:
            _check_value(name, entry)


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= MOST_NAME:
        raise MessageError(f"a name of {len(name)} characters, 1 to {MOST_NAME} are accepted")


def _check_value(name: str, value: object) -> None:
    # bool is an int to Python, and always within its bounds.
    if isinstance(value, int) and value not in _INT64:
        raise MessageError(f"{name} = {value}: beyond 64 bits")
    if isinstance(value, str) and len(value) > MOST_TEXT:
        raise MessageError(f"{name} has {len(value)} characters, at most {MOST_TEXT} are accepted")
    if isinstance(value, bytes) and len(value) > MOST_BYTES:
        raise MessageError(f"{name} has {len(value)} bytes, at most {MOST_BYTES} are accepted")
