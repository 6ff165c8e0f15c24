"""Intake: replies as the network brings them, before they are measured, listed or read."""

from collections.abc import Iterable

from flwr.app import Error, Message
from flwr.serverapp import Grid

from common.errors import MessageError
from common.messages import ReleaseNote, Usage, check_form, payload_bytes
from server_app.rounds.delegating_grid import DelegatingGrid

__all__ = ["REFUSED", "IntakeGrid"]

REFUSED = 1001
"""Error code of what stands in the place of a malformed reply; Flower's own are below 1000."""


class IntakeGrid(DelegatingGrid):
    """A grid that gives an error in the place of a reply that is not as any message may be.

    So nobody behind it needs to know of malformed replies: they are errors of their sites.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._pushed: dict[str, Message] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return their replies; what comes from nobody who was asked is gone."""
        sent = list(messages)
        asked = {message.metadata.dst_node_id: message for message in sent}
        return [
            _taken_in(reply, asked[reply.metadata.src_node_id])
            for reply in self.inner.send_and_receive(sent, timeout=timeout)
            if reply.metadata.src_node_id in asked
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, to be pulled later."""
        sent = list(messages)
        ids = list(self.inner.push_messages(sent))
        self._pushed.update(zip(ids, sent, strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        replies = []
        for reply in self.inner.pull_messages(message_ids):
            asked = self._pushed.pop(reply.metadata.reply_to_message_id, None)
            replies.append(reply if asked is None else _taken_in(reply, asked))
        return replies


def _taken_in(reply: Message, asked: Message) -> Message:
    if reply.has_error():
        return reply
    if not reply.has_content():
        return Message(Error(REFUSED, "malformed reply: it holds nothing"), reply_to=asked)
    try:
        check_form(reply.content)
        ReleaseNote.beside(reply.content)
        Usage.beside(reply.content)
    except MessageError as error:
        size = payload_bytes(reply.content)
        return Message(Error(REFUSED, f"malformed reply of {size} bytes: {error}"), reply_to=asked)
    return reply
