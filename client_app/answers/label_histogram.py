"""Label histogram: the rows that a site has of each class."""

import numpy as np
from flwr.app import Message

from client_app.answers import with_noise
from client_app.handlers import answers
from client_app.site import Site
from common import messages

__all__ = ["histogram", "rows_of_classes"]


@answers(messages.LABEL_HISTOGRAM)
def rows_of_classes(message: Message, site: Site) -> Message:
    """Count the training rows of each class, with noise if the run asks for it."""
    with_noise.refuse_persons(site)
    counts = histogram(site.dataset.train_strata[site.rows.train], site.dataset.num_classes)
    answer, note = with_noise.label_answer(site, counts)
    return messages.reply(message, answer, note=note)


def histogram(labels: np.ndarray, num_classes: int) -> list[int]:
    """Return the number of rows per class, length ``num_classes``.

    In the clear this is exact: whoever receives it knows how many rows of each class a site holds.
    """
    counts: list[int] = np.bincount(labels, minlength=num_classes).tolist()
    return counts
