"""Keys of a message's content, and the kinds of messages."""

from flwr.app import MessageType

ARRAYS = "arrays"
RECORD = "record"
NOTE = "release-note"
USAGE = "usage"
FIGURES = "task-figures"
MARK = "coterie.mark"
OURS = "coterie."
"""Begins the keys of what is ours in a message of another Flower app."""

TRAIN = MessageType.TRAIN
TRAIN_CHOICE = f"{MessageType.TRAIN}.of_choice"
TRAIN_TELLING = f"{MessageType.TRAIN}.telling_loss"
EVALUATE = MessageType.EVALUATE
FINE_TUNE = f"{MessageType.TRAIN}.fine_tune"
CHOOSE = f"{MessageType.QUERY}.choose"
INTRODUCE = f"{MessageType.QUERY}.introduce"
FINAL_EVALUATION = f"{MessageType.QUERY}.final_evaluation"
SCORE_COUNTS = f"{MessageType.QUERY}.score_counts"
LABEL_HISTOGRAM = f"{MessageType.QUERY}.label_histogram"
LOSS = f"{MessageType.QUERY}.loss"
PROBE_ROWS = f"{MessageType.QUERY}.probe_rows"
REPRESENTATIONS = f"{MessageType.QUERY}.representations"
CLASS_STATISTICS = f"{MessageType.QUERY}.class_statistics"
CLASS_BASES = f"{MessageType.QUERY}.class_bases"
EMBEDDED_ROWS = f"{MessageType.QUERY}.embedded_rows"


def trains(kind: str) -> bool:
    """Return whether a site that is asked this trains: Flower's category of the message says it.

    >>> trains("train.of_choice"), trains("evaluate")
    (True, False)
    """
    return kind.partition(".")[0] == MessageType.TRAIN
