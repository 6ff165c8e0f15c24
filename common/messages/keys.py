"""Keys of a message's content, and which kinds train."""

from flwr.app import MessageType

ARRAYS = "arrays"
RECORD = "record"
NOTE = "release-note"
USAGE = "usage"
FIGURES = "task-figures"
MARK = "coterie.mark"
OURS = "coterie."
"""Begins the keys of what is ours in a message of another Flower app."""


def trains(kind: str) -> bool:
    """Return whether a site that is asked this trains: Flower's category of the message says it.

    >>> trains("train.of_choice"), trains("evaluate")
    (True, False)
    """
    return kind.partition(".")[0] == MessageType.TRAIN
