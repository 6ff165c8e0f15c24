"""Grids: one over another, to do something with messages on their way; one that holds clients."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from common.data.preprocessing import Preprocessing


@runtime_checkable
class HoldsClients(Protocol):
    """A grid that holds what its clients keep, and must have it saved: they are simulated.

    Real sites keep that themselves, and survive the server.
    """

    def are_here(self) -> bool:
        """Return whether there are clients; a grid over one of real sites has none."""
        ...

    def trained_by(self) -> str:
        """Return in words which code trains the clients' networks; empty: each its own."""
        ...

    def client_states(self) -> dict[str, np.ndarray]:
        """Return what each client keeps, as bytes in (b,) uint8, by a name that stays the same."""
        ...

    def restore_clients(self, states: Mapping[str, np.ndarray]) -> None:
        """Let the clients go on from what :meth:`client_states` returned."""
        ...

    def preprocessing(self) -> Preprocessing | None:
        """Return how all clients' rows were prepared; None where each has figures of its own."""
        ...


class DelegatingGrid(Grid):
    """Leaves everything to ``inner``; subclasses override what they change."""

    def __init__(self, inner: Grid) -> None:
        self.inner = inner

    def set_run(self, run: Any) -> None:
        """Take the run that the grid operates in."""
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        """The run that the grid operates in."""
        return self.inner.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message."""
        return self.inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all connected nodes."""
        return self.inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, to be pulled later."""
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        return self.inner.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return their replies."""
        return self.inner.send_and_receive(messages, timeout=timeout)
