"""Own rounds: a Flower strategy whose ``start`` plays the rounds, in the place of Flower's loop."""

from collections.abc import Iterable
from typing import Any, NoReturn

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from common.errors import RoundError


class OwnRounds(Strategy):
    """Refuses Flower's four steps, between which nothing lies about where an attempt is a value.

    Flower's own loop would carry one model, accept an average over nobody and go on after it.
    """

    def configure_train(self, *_: Any, **__: Any) -> Iterable[Message]:
        """Refuse: :meth:`start` does this."""
        self._plays_its_own_rounds()

    def aggregate_train(self, *_: Any, **__: Any) -> tuple[ArrayRecord, MetricRecord]:
        """Refuse: :meth:`start` does this."""
        self._plays_its_own_rounds()

    def configure_evaluate(self, *_: Any, **__: Any) -> Iterable[Message]:
        """Refuse: :meth:`start` does this."""
        self._plays_its_own_rounds()

    def aggregate_evaluate(self, *_: Any, **__: Any) -> MetricRecord:
        """Refuse: :meth:`start` does this."""
        self._plays_its_own_rounds()

    def _plays_its_own_rounds(self) -> NoReturn:
        raise RoundError(f"{type(self).__name__} plays its rounds itself: call its start")
