"""Contents of messages: put together, answered, taken apart and measured."""

import math

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from common.errors import MessageError
from common.messages.arrays import Parameters, encode_arrays
from common.messages.keys import ARRAYS, FIGURES, NOTE, RECORD, USAGE
from common.messages.records import Record, ReleaseNote, TaskFigures, Usage


def content(record: Record | None = None, arrays: ArrayRecord | None = None) -> RecordDict:
    """Return a message's content."""
    result = RecordDict()
    if record is not None:
        result[RECORD] = record.encode()
    if arrays is not None:
        result[ARRAYS] = arrays
    return result


def reply(
    message: Message,
    record: Record,
    parameters: Parameters | None = None,
    note: ReleaseNote | None = None,
) -> Message:
    """Return the answer to a message; ``note`` says how it was protected, if it was."""
    arrays = None if parameters is None else encode_arrays(parameters)
    answer = content(record, arrays)
    if note is not None:
        answer[NOTE] = note.encode()
    return Message(answer, reply_to=message)


def with_usage(answer: Message, usage: Usage) -> Message:
    """Put what a reply took beside it; an error reply holds nothing and stays as it is."""
    if answer.has_content():
        answer.content[USAGE] = usage.encode()
    return answer


def with_figures(answer: Message, figures: TaskFigures) -> Message:
    """Put what a site's metrics are beside its report."""
    answer.content[FIGURES] = figures.encode()
    return answer


def arrays_of(message_content: RecordDict) -> ArrayRecord:
    """Return the model in a message's content."""
    arrays = message_content.get(ARRAYS)
    if not isinstance(arrays, ArrayRecord):
        raise MessageError("the message holds no model")
    return arrays


_SCALAR_BYTES = 10  # a protobuf number with its tag and the map entry around it


def payload_bytes(message_content: RecordDict) -> int:
    """Return the bytes of a content: arrays exactly, names and scalars as protobuf packs them.

    Flower adds about a kilobyte of headers per message, and TLS its own; neither is counted.
    """
    records = list(message_content.values())
    arrays = sum(_array_bytes(record) for record in records if isinstance(record, ArrayRecord))
    configs = (record for record in records if isinstance(record, ConfigRecord))
    return arrays + sum(map(_config_bytes, configs))


def payload_numbers(message_content: RecordDict) -> float:
    """Return how many numbers of 32 bits the arrays of a content amount to."""
    arrays = [
        array
        for record in message_content.values()
        if isinstance(record, ArrayRecord)
        for array in record.values()
    ]
    return sum(math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in arrays) / 4


def _array_bytes(record: ArrayRecord) -> int:
    return sum(len(name) + len(array.data) for name, array in record.items())


def _config_bytes(record: ConfigRecord) -> int:
    return sum(len(key) + _value_bytes(value) for key, value in record.items())


def _value_bytes(value: object) -> int:
    if isinstance(value, list):
        return sum(map(_value_bytes, value))
    return len(value) + 2 if isinstance(value, str | bytes) else _SCALAR_BYTES
