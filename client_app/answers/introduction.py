"""Introduction of a site: its id, its rows' number and shape, and what it releases."""

import numpy as np
import torch
from flwr.app import Message

from client_app.answers import private_rows
from client_app.handlers import answers
from client_app.site import Site
from client_app.training.batch_norm import refuse_lone_rows
from common import messages
from common.code_identity import code_of_run
from common.errors import DataError
from common.exact.learners import TREES, is_summed
from common.messages import Introduction
from common.tasks.inputs import FEATURES

__all__ = ["introduce"]


@answers(messages.INTRODUCE)
def introduce(message: Message, site: Site) -> Message:
    """Say who this site is and what it releases; one that could never train does not come in.

    Held-out rows that no model can be judged by count as none, so that nobody asks for a figure.
    """
    refuse_lone_rows(site)
    _refuse_gaps(site)
    private_rows.prepare(site)
    task = site.dataset.task
    if len(site.rows.train) and not is_summed(site.settings.model):
        task.check_training(torch.from_numpy(site.train[1]))
    introduction = Introduction(
        site=site.name,
        num_examples=len(site.rows.train),
        num_test_examples=len(site.rows.test) if task.can_judge(site.test_labels) else 0,
        num_classes=site.dataset.num_classes,
        input_kind=site.dataset.kind,
        input_shape=list(site.dataset.inputs.shape),
        releases=list(site.releases),
        link_rate=site.link_rate,
        schema=site.dataset.schema,
        code=None if site.simulated else code_of_run(site.settings),
    )
    return messages.reply(message, introduction)


def _refuse_gaps(site: Site) -> None:
    """Raise :class:`DataError` for rows with gaps, where what is learnt takes none."""
    if site.settings.model == TREES or site.dataset.kind != FEATURES:
        return
    if any(np.isnan(part[0]).any() for part in (site.train, site.test)):
        raise DataError(
            f"rows with gaps, which the schema keeps (fill = 'keep'): model={site.settings.model} "
            "takes none; use model=trees, or a schema that fills them, as fill = 'median'"
        )
