"""Intake: replies as the network brings them, before they are measured, listed or read."""

from collections.abc import Iterable

import httpx
from flwr.app import Error, Message
from flwr.serverapp import Grid

from common.errors import MessageError, quotable
from common.flower_private import ObjectPushError
from common.messages import ReleaseNote, Usage, check_form, payload_bytes
from server_app.rounds.delegating_grid import DelegatingGrid

__all__ = ["REFUSED", "IntakeGrid"]

REFUSED = 1001
"""Error code of what stands in the place of a malformed reply; Flower's own are below 1000."""

_PUSHES = 4


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
        ids = self._ids_of(sent)
        self._pushed.update(zip(ids, sent, strict=True))
        return ids

    def _ids_of(self, sent: list[Message]) -> list[str]:
        """Push messages; once more where Flower lost count of what it had pushed.

        Flower repeats a request whose connection broke. If the SuperLink had already stored the
        object in it, it refuses the repeated one, and the push fails (1.42). Messages keep their
        ids, and pushed once more, only what the SuperLink lacks is sent.
        """
        for _ in range(_PUSHES - 1):
            try:
                return list(self.inner.push_messages(sent))
            except ObjectPushError:
                continue
        return list(self.inner.push_messages(sent))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there.

        Pulled one by one: what Flower cannot put together would take the others of its pull along.
        """
        return [reply for key in list(message_ids) for reply in self._pulled(key)]

    def _pulled(self, key: str) -> list[Message]:
        asked = self._pushed.get(key)
        try:
            replies = list(self.inner.pull_messages([key]))
        except httpx.HTTPError:  # the SuperLink's, and no site's
            raise
        except Exception as error:
            if asked is None:
                raise
            replies = [_refusal(asked, f"Flower cannot read it: {error}")]
        if replies:
            self._pushed.pop(key, None)
        return replies if asked is None else [_taken_in(reply, asked) for reply in replies]


def _taken_in(reply: Message, asked: Message) -> Message:
    if reply.has_error():
        return reply
    if not reply.has_content():
        return _refusal(asked, "it holds nothing")
    kind = asked.metadata.message_type
    if reply.metadata.message_type != kind:
        return _refusal(asked, f"{reply.metadata.message_type!r} in answer to {kind!r}")
    try:
        check_form(reply.content)
        ReleaseNote.beside(reply.content)
        Usage.beside(reply.content)
    except MessageError as error:
        return _refusal(asked, f"{error} ({payload_bytes(reply.content)} bytes in all)")
    return reply


def _refusal(asked: Message, reason: str) -> Message:
    return Message(Error(REFUSED, f"malformed reply: {quotable(reason)}"), reply_to=asked)
