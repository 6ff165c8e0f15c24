"""The round that every strategy plays: select, route, train, guard, average, evaluate, record."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from common import messages, seeds
from common.config import Settings
from common.errors import RoundError
from server_app import guard
from server_app.clustering import Clusters
from server_app.exchange import OK, Answer, Exchange
from server_app.guard import Template
from server_app.ledger import Attempt, Ledger
from server_app.methods import Method
from server_app.roster import Roster
from server_app.routing import average
from server_app.run_folder import RunFolder
from server_app.selection import Cohort, View

log = logging.getLogger("coterie")

_ATTEMPTS = 2  # a round without one usable reply is retried once


class FederatedTraining(Strategy):
    """Rounds of training with one or several models and a rule for who trains.

    Flower's own loop would carry one model, accept an average over nobody and go on after it; this
    class keeps its ``start`` signature over a loop of its own. What differs between methods is in
    the ``Method``; a subclass exists only where other messages flow (``prepare``).
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        self.method = method
        self.settings = settings
        self.roster = roster
        self.folder = folder
        self.clusters = Clusters.single(len(roster))
        self.models: list[dict[str, np.ndarray]] = []
        self._ledger = Ledger(folder, roster)
        self._attempt = Attempt(round=0, attempt=0)
        self._cohort_weights: np.ndarray | None = None
        self._exchange: Exchange | None = None

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Exchange what a method needs before round 1; this one needs nothing."""

    def after_round(self, server_round: int) -> None:
        """Do what must happen when a round's line is on disk."""
        self.folder.set_status("running", done=server_round, rounds=self.settings.num_server_rounds)

    # The loop ----------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Play all rounds and write the run's record; :class:`RoundError` if one has no result."""
        began = time.perf_counter()
        self.summary()
        self.models = [messages.decode_arrays(initial_arrays)]
        self.prepare(grid, timeout)
        self._give_models()
        result = Result()
        for server_round in range(1, num_rounds + 1):
            trained, evaluated = self._play(server_round, grid, timeout)
            result.train_metrics_clientapp[server_round] = trained
            result.evaluate_metrics_clientapp[server_round] = evaluated
        result.arrays = messages.encode_arrays(self.models[0])
        self._finish(time.perf_counter() - began)
        return result

    def _give_models(self) -> None:
        """Start every model from the first one."""
        self.models = self.models[:1] * (int(self.routes.max()) + 1)

    @property
    def routes(self) -> np.ndarray:
        """The model index of each client, (n,) ints."""
        return self.method.route(self.clusters)

    def _play(
        self, server_round: int, grid: Grid, timeout: float
    ) -> tuple[MetricRecord, MetricRecord]:
        before = list(self.models)
        for attempt in range(1, _ATTEMPTS + 1):
            self._attempt = Attempt(server_round, attempt)
            trained = self._train(server_round, grid, timeout)
            evaluated = self._evaluate(server_round, grid, timeout) if trained else None
            self._record()
            if trained and evaluated:
                self.after_round(server_round)
                return trained, evaluated
            self.models = before
        raise RoundError(
            f"round {server_round}: no usable {'evaluation' if trained else 'update'} in "
            f"{_ATTEMPTS} attempts; {self._first_reason()}"
        )

    def _record(self) -> None:
        """Put the attempt on disk, say how it went, and stop if the settings want that."""
        line = self._ledger.record(self._attempt)
        for entry in line["rejected"]:
            log.warning("round %d: %s: %s", line["round"], entry["site"], entry["reason"])
        for site in line["missing"]:
            log.warning("round %d: %s: no reply", line["round"], site)
        log.info("%s", self._progress(line))
        if self.settings.on_bad_update == "fail" and (line["rejected"] or line["missing"]):
            raise RoundError(f"round {line['round']}: {self._first_reason()} (on-bad-update=fail)")

    def _progress(self, line: dict[str, Any]) -> str:
        position = f"round {line['round']:>3}/{self.settings.num_server_rounds}"
        if line["accuracy"] is None:
            return f"{position}  failed, attempt {line['attempt']} of {_ATTEMPTS}"
        return (
            f"{position}  accuracy {line['accuracy']:.4f}  loss {line['loss']:.4f}  "
            f"{len(line['trained'])} trained  {sum(line['seconds'].values()):.2f} s"
        )

    def _first_reason(self) -> str:
        answers: list[Answer[Any]] = [*self._attempt.training, *self._attempt.evaluation]
        bad = [answer for answer in answers if answer.verdict != OK]
        if not bad:
            return "nobody was asked"
        first = bad[0]
        return f"{self.roster.names[first.client]}: {first.verdict}"

    def _finish(self, seconds: float) -> None:
        for index, parameters in enumerate(self.models):
            self.folder.write_model(index, parameters)
        self.folder.write_json("results.json", self._ledger.results(seconds))

    def _train(self, server_round: int, grid: Grid, timeout: float) -> MetricRecord | None:
        with self._timed("server"):
            outgoing = self.configure_train(server_round, ArrayRecord(), ConfigRecord(), grid)
        with self._timed("train"):
            replies = grid.send_and_receive(outgoing, timeout=timeout)
        with self._timed("server"):
            return self.aggregate_train(server_round, replies)[1]

    def _evaluate(self, server_round: int, grid: Grid, timeout: float) -> MetricRecord | None:
        outgoing = self.configure_evaluate(server_round, ArrayRecord(), ConfigRecord(), grid)
        with self._timed("evaluate"):
            replies = grid.send_and_receive(outgoing, timeout=timeout)
        return self.aggregate_evaluate(server_round, replies)

    # Flower's four steps -----------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the cohort; every member is sent its model. Models live in the strategy."""
        rng = seeds.generator(self.settings.seed, "selection", server_round, self._attempt.attempt)
        cohort = self.method.select.choose(self._view(server_round, grid), rng)
        self._cohort_weights = self._weights(cohort)
        return self._send(messages.TRAIN, cohort.clients, server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the usable updates per model; ``(None, None)`` if there is none."""
        assert self._exchange is not None
        template = Template.of(self.models[0])
        self._attempt.training = self._exchange.answers(
            replies, lambda reply, asked: guard.inspect_training(reply, asked, template)
        )
        updates = self._attempt.trained
        if not updates:
            return None, None
        self._average()
        losses = [report.loss for _, report, _ in updates]
        return None, MetricRecord({"train_loss": float(np.mean(losses))})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send every available site that has held-out rows the model it gets."""
        able = self.roster.available(grid) & (self.roster.num_test_examples > 0)
        return self._send(messages.EVALUATE, np.flatnonzero(able), server_round)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return accuracy and loss over all sites' rows; None if no site's answer is usable."""
        assert self._exchange is not None
        self._attempt.evaluation = self._exchange.answers(replies, guard.inspect_evaluation)
        reports = self._attempt.evaluated
        if not reports:
            return None
        rows = np.array([report.num_examples for report in reports])
        accuracy = np.average([report.accuracy for report in reports], weights=rows)
        return MetricRecord({"accuracy": float(accuracy)})

    def summary(self) -> None:
        """Log what is about to run."""
        settings = self.settings
        log.info(
            "%s on %s: %d sites, %d training rows, %d rounds",
            settings.strategy,
            settings.dataset,
            len(self.roster),
            int(self.roster.num_examples.sum()),
            settings.num_server_rounds,
        )

    # Pieces of a round -------------------------------------------------------------------------

    def _view(self, server_round: int, grid: Grid) -> View:
        return View(
            round=server_round,
            available=self.roster.available(grid),
            num_examples=self.roster.num_examples,
            clusters=self.clusters,
        )

    def _weights(self, cohort: Cohort) -> np.ndarray | None:
        if cohort.weights is None:
            return None
        weights = np.zeros(len(self.roster))
        weights[cohort.clients] = cohort.weights
        return weights

    def _send(self, kind: str, clients: np.ndarray, server_round: int) -> list[Message]:
        routes = self.routes
        self._exchange = Exchange.with_models(
            self.roster,
            kind,
            self.models,
            {int(client): int(routes[client]) for client in clients},
            round_number=server_round,
            attempt=self._attempt.attempt,
        )
        return self._exchange.outgoing()

    def _average(self) -> None:
        updates = self._attempt.trained
        for index in range(len(self.models)):
            mine = [update for update in updates if update[0].model == index]
            if mine:
                self.models[index] = average(
                    [parameters for _, _, parameters in mine],
                    np.array(
                        [self._weight(answer.client, r.num_examples) for answer, r, _ in mine]
                    ),
                )

    def _weight(self, client: int, num_examples: int) -> float:
        weights = self._cohort_weights
        return float(num_examples if weights is None else weights[client])

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = self._attempt.seconds.get(phase, 0.0)
            self._attempt.seconds[phase] = spent + time.perf_counter() - began
