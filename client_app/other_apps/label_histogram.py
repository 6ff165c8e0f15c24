"""Label histogram of an app's site: counted by the app's own word on which labels there are."""

from collections.abc import Callable

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp.typing import Mod
from numpy.typing import ArrayLike, NDArray

from client_app.answers import label_histogram as descriptors
from client_app.answers import with_noise
from client_app.other_apps.marked_messages import AppTraining, answering
from client_app.other_apps.own_say import AppNode
from common import messages
from common.config import Training
from common.errors import DataError, MessageError
from common.messages import Introduction, LabelQuestion
from common.privacy.labels import label_mechanism

__all__ = ["LabelsOf", "label_histogram_mod"]

LabelsOf = Callable[[Context], ArrayLike]
"""A node's context -> the classes of its training rows, (n,) integers from 0."""

_RELEASE = "label-histogram"


def label_histogram_mod(labels_of: LabelsOf, num_classes: int = 0) -> Mod:
    """Return a mod with which an app tells a strategy of ours how many rows of each class it has.

    It answers when it is asked, before round 1, and leaves all else to the app. The site's name,
    privacy budget and ``state-dir`` are read from the node's config (``--node-config``), as
    Coterie's own sites have them; the budget's book lies in the ``state-dir``.

    Args:
        labels_of: the app's labels, of the node that a context is of.
        num_classes: K; 0: one more than the largest label of any site. It must be given where
            noise is to hide which classes a site has.

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[label_histogram_mod(lambda context: [0, 2, 2], num_classes=3)])
    """

    def introduce(message: Message, context: Context, training: AppTraining) -> Message:
        question = LabelQuestion.decode(message.content)
        node, labels = _asked(question, context), _labels(context)
        if not num_classes and (node.budget.bounded or _hides_classes(question, node)):
            raise MessageError(
                "this site's largest label would say which classes it has: write "
                "label_histogram_mod(labels_of, num_classes=...)"
            )
        introduction = Introduction(
            site=node.name,
            num_examples=len(labels),
            num_test_examples=0,
            num_classes=num_classes or int(labels.max()) + 1,
            input_shape=[1],
            releases=[_RELEASE],
        )
        return messages.reply(message, introduction)

    def label_histogram(message: Message, context: Context, training: AppTraining) -> Message:
        question = LabelQuestion.decode(message.content)
        node, labels = _asked(question, context), _labels(context)
        if num_classes not in (0, question.num_classes) or labels.max() >= question.num_classes:
            has = num_classes or "more"  # which one is the largest would say which it has
            raise MessageError(f"asked for {question.num_classes} classes, this site has {has}")
        counts = descriptors.histogram(labels, question.num_classes)
        answer, note = with_noise.label_answer(node, counts)
        return messages.reply(message, answer, note=note)

    def _labels(context: Context) -> NDArray[np.int64]:
        labels = np.asarray(labels_of(context))
        if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "iu":
            raise DataError(
                f"labels_of returned {labels.dtype} of shape {labels.shape}: it must return the "
                "class of every training row, integers from 0"
            )
        if labels.min() < 0 or (num_classes and labels.max() >= num_classes):
            raise DataError(
                "labels_of returned labels outside of 0 to "
                f"{num_classes - 1 if num_classes else 'the number of classes - 1'}"
            )
        return labels.astype(np.int64)

    return answering(
        _RELEASE, {messages.INTRODUCE: introduce, messages.LABEL_HISTOGRAM: label_histogram}
    )


def _asked(question: LabelQuestion, context: Context) -> AppNode:
    """Return the node with the settings that a question has; they are checked like any other."""
    settings = Training.parse(
        {
            "label-privacy": question.label_privacy,
            "epsilon": question.epsilon,
            "delta": question.delta,
            "label-gamma": question.label_gamma,
        },
        source="asked",
    )
    return AppNode.of(context, _RELEASE, settings)


def _hides_classes(question: LabelQuestion, node: AppNode) -> bool:
    return label_mechanism(node.settings, max(question.num_classes, 2)) is not None
