"""Marked messages: those of Coterie among the training messages that an app's mods are called for.

A mod answers a message whose mark names what it releases, without calling on, and lets every other
pass. A refusal travels as a marked answer: by that the server tells it from an app without the mod.
"""

from collections.abc import Callable, Mapping

from flwr.app import Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from common import messages
from common.errors import CoterieError, MessageError, quotable
from common.messages import MessageMark, Opened

__all__ = ["Answer", "answering"]

Train = Callable[[], Message]
"""Has the app train on what it finds of its own in the message, and returns its reply."""

Answer = Callable[[Message, Context, Train], Message]
"""Returns the answer to a message, which holds what is ours in it."""


def answering(release: str, answers: Mapping[str, Answer]) -> Mod:
    """Return the mod that answers some kinds of messages.

    Args:
        release: what it gives out; messages that are for it name that.
        answers: by kind.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if messages.MARK not in message.content:
            return call_next(message, context)
        mark = MessageMark("", release)
        try:
            opened = Opened.of(message.content)
            mark = opened.mark or mark
            if mark.release != release:
                return call_next(message, context)
            messages.check_form(opened.ours)
            if mark.kind not in answers:
                raise MessageError(f"this version of Coterie knows no {mark.kind!r}")

            def train() -> Message:
                message.content = opened.theirs
                return call_next(message, context)

            message.content = opened.ours
            reply = answers[mark.kind](message, context, train)
        except CoterieError as error:
            return _refusal(message, mark, str(error))
        except Exception as error:
            return _refusal(message, mark, f"{type(error).__name__}: {error}")
        if reply.has_content():
            reply.content = messages.marked(reply.content, mark)
        return reply

    return mod


def _refusal(message: Message, mark: MessageMark, reason: str) -> Message:
    said = MessageMark(mark.kind, mark.release, quotable(reason))
    return Message(messages.marked(RecordDict(), said), reply_to=message)
