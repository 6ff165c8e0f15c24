"""Introduction of a site: its id, its rows' number and shape, and what it releases."""

from flwr.app import Message

from client_app.handlers import answers
from client_app.site import Site
from client_app.training.batch_norm import refuse_lone_rows
from common import messages
from common.code_identity import code_of_run
from common.messages import Introduction

__all__ = ["introduce"]


@answers(messages.INTRODUCE)
def introduce(message: Message, site: Site) -> Message:
    """Say who this site is and what it releases; one that could never train does not come in."""
    refuse_lone_rows(site)
    introduction = Introduction(
        site=site.name,
        num_examples=len(site.rows.train),
        num_test_examples=len(site.rows.test),
        num_classes=site.dataset.num_classes,
        input_shape=list(site.dataset.input_shape),
        releases=list(site.releases),
        link_rate=site.link_rate,
        schema=site.dataset.schema,
        code=None if site.simulated else code_of_run(site.settings),
    )
    return messages.reply(message, introduction)
