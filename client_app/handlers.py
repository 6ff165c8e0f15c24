"""Handlers: what at a site answers each kind of message, and what must be released for that.

A handler stands beside its arithmetic in ``client_app/answers/``, one from elsewhere in its own
package, and names its kind; nobody else requires the site's releases.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from flwr.app import Context, Message

from client_app.site import Site, require
from common.errors import ConfigError, MessageError
from common.messages.kind import Kind
from common.messages.kinds import KINDS, kind_named, kinds_named_in

__all__ = ["Handler", "answers", "handler_for", "require_releases"]

Answer = Callable[[Message, Site], Message]
NodeAnswer = Callable[[Message, Site, Context], Message]
Needed = Callable[[Message, Site], Iterable[str]]

A = TypeVar("A", bound=Callable[..., Message])


@dataclass(frozen=True)
class Handler:
    """What answers one kind of message.

    Attributes:
        kind: of the messages.
        answer: returns the reply of a site to a message that holds what the kind asks.
        needed: which of the kind's releases a certain message to a certain site needs.
    """

    kind: Kind
    answer: NodeAnswer
    needed: Needed


_HANDLERS: dict[Kind, Handler] = {}


def answers(
    kind: Kind | str, *, of_node: bool = False, needed: Needed | None = None
) -> Callable[[A], A]:
    """Return what makes a function the handler of a kind, declared or by its name.

    The function is handed the message and the site, and returns the reply.

    Args:
        kind: of the messages.
        of_node: whether it is handed the node's context, too, which keeps what a protocol needs
            between its steps.
        needed: which of the kind's releases a certain message needs; None: all.

    Raises:
        ConfigError: another function answers that kind.
    """
    declared = kind_named(kind) if isinstance(kind, str) else kind

    def register(answer: A) -> A:
        if declared in _HANDLERS:
            raise ConfigError(f"{declared.name}: there is another handler of that kind")

        def all_of_them(message: Message, site: Site) -> Iterable[str]:
            return [release.name for release in declared.releases]

        def without_node(message: Message, site: Site, context: Context) -> Message:
            return answer(message, site)

        _HANDLERS[declared] = Handler(
            declared, answer if of_node else without_node, needed or all_of_them
        )
        return answer

    return register


def handler_for(name: str, messages: str) -> Handler:
    """Return what answers messages of a type in a run.

    Args:
        name: of the type.
        messages: the run's setting: kinds from elsewhere that its sites answer.

    Raises:
        MessageError: nothing does.
        ConfigError: a kind from elsewhere that cannot be had.
    """
    kinds = KINDS if name in KINDS else {each.name: each for each in kinds_named_in(messages)}
    if name not in kinds or kinds[name] not in _HANDLERS:
        raise MessageError(f"nothing at this site answers {name!r} in this run")
    return _HANDLERS[kinds[name]]


def require_releases(handler: Handler, message: Message, site: Site) -> None:
    """Raise :class:`MessageError` if a site does not release what a message needs of it."""
    declared = {release.name: release for release in handler.kind.releases}
    for name in handler.needed(message, site):
        if name not in declared:
            raise ConfigError(f"{handler.kind.name}: its kind declares no release {name!r}")
        if not declared[name].always:
            require(site, name)
