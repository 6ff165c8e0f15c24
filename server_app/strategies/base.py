"""The round that every strategy plays: select, route, train, guard, average, evaluate, record."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from common import messages, seeds
from common.config import Settings
from common.errors import RoundError
from server_app.aggregation.mean import Update, averaged, divergences, regrouped, with_latest
from server_app.clustering.algorithms import Clusters
from server_app.metering.run_meter import RunMeter
from server_app.methods import Method
from server_app.protection.central_dp import CentralDp
from server_app.protection.secagg import SecaggAverages
from server_app.record import audit, checkpoint
from server_app.record.checkpoint import HoldsClients, State
from server_app.record.ledger import Attempt, Ledger, progress
from server_app.record.run_folder import RunFolder
from server_app.rounds import guard
from server_app.rounds.exchange import Exchange
from server_app.rounds.guard import Template
from server_app.rounds.roster import Roster, introduce_late
from server_app.rounds.routing import mixed, per_cluster
from server_app.selection.rules import Cohort, View

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
        self.meter = RunMeter()
        """Where the grid enters messages and this class its work; the app opens another."""
        self._attempt = Attempt(round=0, attempt=0)
        self._cohort_weights: np.ndarray | None = None
        self._exchange: Exchange | None = None
        self._drift: float | None = None
        self._resumed: tuple[int, State] = 0, {}
        self._strangers: set[int] = set()
        self._away: set[int] = set()
        self._sight: tuple[View, np.random.Generator] | None = None
        self._updates = np.empty((0, 0), dtype=np.float32)
        self._accuracies: dict[int, float] = {}
        self._central = CentralDp.chosen(settings, folder)

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Exchange what a method needs before round 1; this one needs nothing."""

    def before_round(self, server_round: int, grid: Grid, timeout: float) -> None:
        """Exchange what a method needs between two rounds; this one needs nothing."""

    def after_training(self, grid: Grid, timeout: float) -> None:
        """Exchange what a method needs after the last round; this one needs nothing."""

    def admit(self, newcomers: Roster, grid: Grid, timeout: float) -> Roster | None:
        """Take sites that joined late into a cluster, and return those that could be."""
        added = len(self.roster.joined(newcomers)) - len(self.roster)
        self.clusters = Clusters(np.append(self.clusters.labels, np.zeros(added, dtype=np.int64)))
        return newcomers

    def before_average(self, server_round: int) -> None:
        """Do what must happen once a round's updates are there; this one needs nothing."""

    def needs_updates(self, server_round: int) -> bool:
        """Return whether single updates must be seen in a round; averages will do for this one."""
        return False

    def after_round(self, server_round: int) -> None:
        """Do what must happen when a round's line is on disk."""
        self.folder.set_status("running", done=server_round, rounds=self.settings.num_server_rounds)

    def state(self) -> State:
        """Return what the rounds to come rest on, beside the settings and the models' start."""
        return {
            "clusters": self.clusters.labels,
            "models": {str(index): model for index, model in enumerate(self.models)},
            "selection": self.method.select.state(),
            "updates": self._updates,
            "accuracies": {str(client): value for client, value in self._accuracies.items()},
        }

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on from what :meth:`state` returned, in place of :meth:`prepare`."""
        self.clusters = Clusters(state["clusters"])
        self.models = [dict(model) for model in state["models"].values()]
        self.method.select.restore(state["selection"])
        self._updates = state["updates"]
        self._accuracies = {int(client): value for client, value in state["accuracies"].items()}

    def resume(self, done: int, state: State) -> None:
        """Let :meth:`start` go on after round ``done`` instead of starting at round 1."""
        self._resumed = done, state

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
        if "losses" in self.method.select.needs:
            self.roster.require("loss", why=f"strategy={self.settings.strategy}")
        if self.settings.secagg:
            self.roster.require("masked-model", why="secagg=true")
        if self.settings.secagg and "models" in self.method.needs:
            self.roster.require("model", why=f"strategy={self.settings.strategy}")
        self.models = [messages.decode_arrays(initial_arrays)]
        done = self._begin(grid, timeout)
        began -= self._resumed[1].get("seconds", 0.0)
        result = Result()
        for server_round in range(done + 1, num_rounds + 1):
            self._greet(grid, timeout)
            self._drift = None
            self.before_round(server_round, grid, timeout)
            trained, evaluated = self._play(server_round, grid, timeout)
            result.train_metrics_clientapp[server_round] = trained
            result.evaluate_metrics_clientapp[server_round] = evaluated
            self._checkpoint(server_round, time.perf_counter() - began, grid)
            if self.settings.stop_at_target and self._ledger.target_was_held(self.settings):
                log.info("the target accuracy was held: the run ends here")
                break
        self.after_training(grid, timeout)
        result.arrays = messages.encode_arrays(self.models[0])
        self._finish(time.perf_counter() - began)
        return result

    def _begin(self, grid: Grid, timeout: float) -> int:
        """Get ready for the first round to play; return how many were played before."""
        done, state = self._resumed
        if state:
            self.restore(state["strategy"], grid, timeout)
            if isinstance(grid, HoldsClients):
                grid.restore_clients(state["clients"])
            log.info("going on after round %d", done)
            return done
        self.prepare(grid, timeout)
        self._give_models()
        self._checkpoint(0, 0.0, grid)
        return 0

    def _checkpoint(self, server_round: int, seconds: float, grid: Grid) -> None:
        every = self.settings.checkpoint_every
        if every and server_round % every == 0:
            state = {
                "sites": [vars(site) for site in self.roster.sites],
                "seconds": seconds,
                "strategy": self.state(),
                "clients": grid.client_states() if isinstance(grid, HoldsClients) else {},
            }
            checkpoint.save(self.folder.path, server_round, state)

    def _give_models(self) -> None:
        """Start every model from the first one."""
        self.models = self.models[:1] * (int(self.routes.max()) + 1)

    @property
    def routes(self) -> np.ndarray:
        """The model index of each client, (n,) ints."""
        return self.method.route(self.clusters)

    def regroup(self, clusters: Clusters) -> None:
        """Put the sites into other clusters; each model starts anew from those its sites had."""
        before = self.routes
        self.clusters = clusters
        self.models = regrouped(self.models, before, self.routes, self.roster.num_examples)

    def _greet(self, grid: Grid, timeout: float) -> None:
        """Let in who connected since the last round, and say who left."""
        newcomers = introduce_late(grid, self.roster, self._strangers, timeout=timeout)
        admitted = self.admit(newcomers, grid, timeout) if newcomers else None
        if newcomers and newcomers != admitted:
            kept = set(admitted.nodes) if admitted else set()
            self._strangers.update(set(newcomers.nodes) - kept)
        if admitted:
            self.roster = self.roster.joined(admitted)
            self._ledger = Ledger(self.folder, self.roster)
            self.folder.write_sites(self.roster.sites)
            for name in admitted.names:
                cluster = self.clusters.labels[self.roster.names.index(name)]
                joined = audit.facts("joined", self.roster.facts([name]))
                log.info("%s joined, cluster %d", name, cluster, extra=joined)
        self._say_who_left(self.roster.available(grid))

    def _say_who_left(self, available: np.ndarray) -> None:
        away = set(np.flatnonzero(~available).tolist())
        left = sorted(away - self._away)
        for client in left:
            name = self.roster.names[client]
            away_now = audit.fact("left", site=name)
            log.warning("%s is not connected and cannot be selected", name, extra=away_now)
        for cluster in np.unique(self.clusters.labels[left]):
            if away.issuperset(self.clusters.members(int(cluster)).tolist()):
                log.warning("cluster %d is empty: none of its sites is connected", cluster)
        self._away = away

    def _play(
        self, server_round: int, grid: Grid, timeout: float
    ) -> tuple[MetricRecord, MetricRecord]:
        before = list(self.models), self.clusters
        for attempt in range(1, _ATTEMPTS + 1):
            self._attempt = Attempt(server_round, attempt, drift=self._drift)
            trained = self._train(server_round, grid, timeout)
            with self.meter.phase("evaluate"):
                evaluated = self._evaluate(server_round, grid, timeout) if trained else None
                self._record()
            if trained and evaluated:
                self.after_round(server_round)
                return trained, evaluated
            self.models, self.clusters = before
        raise RoundError(
            f"round {server_round}: no usable {'evaluation' if trained else 'update'} in "
            f"{_ATTEMPTS} attempts; {self._attempt.first_reason(self.roster.names)}"
        )

    def _record(self) -> None:
        """Put the attempt on disk, say how it went, and stop if the settings want that."""
        line = self._ledger.record(self._attempt, self.meter.close(self.roster))
        for entry in line.rejected:
            fact = audit.fact("rejected", round=line.round, **entry.to_json())
            words = line.round, entry.site, entry.reason
            log.warning("round %d: %s: %s", *words, extra=fact)
        for site in line.missing:
            fact = audit.fact("missing", round=line.round, site=site)
            log.warning("round %d: %s: no reply", line.round, site, extra=fact)
        log.info("%s", progress(line, self.settings.num_server_rounds, _ATTEMPTS))
        if self.settings.on_bad_update == "fail" and (line.rejected or line.missing):
            reason = self._attempt.first_reason(self.roster.names)
            raise RoundError(f"round {line.round}: {reason} (on-bad-update=fail)")

    def _finish(self, seconds: float) -> None:
        kind = "cluster" if self.method.route is per_cluster else "model"
        for index, parameters in enumerate(filter(None, self.models)):
            self.folder.write_model(f"{kind}-{index}", parameters)
        self.folder.store(self._ledger.results(seconds, self.settings))

    def _train(self, server_round: int, grid: Grid, timeout: float) -> MetricRecord | None:
        self._inform(server_round, grid, timeout)
        if self.settings.secagg and not self.needs_updates(server_round):
            with self.meter.phase("train"):
                return self._train_for_sums(grid, timeout)
        with self._timed("server"):
            outgoing = self.configure_train(server_round, ArrayRecord(), ConfigRecord(), grid)
        with self._timed("train"), self.meter.phase("train"):
            replies = grid.send_and_receive(outgoing, timeout=timeout)
        with self._timed("server"), self.meter.phase("train"):
            return self.aggregate_train(server_round, replies)[1]

    def _train_for_sums(self, grid: Grid, timeout: float) -> MetricRecord | None:
        """Choose the cohort; of what each model's members train, only the mean is seen."""
        assert self._sight is not None
        cohort = self.method.select.choose(*self._sight)
        sums = SecaggAverages(grid, self.roster, self.settings, self._attempt, self._timed, timeout)
        self.models, losses = sums.averaged(self.models, cohort, self.routes, self._mixed)
        return MetricRecord({"train_loss": float(np.mean(losses))}) if losses else None

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
        assert self._sight is not None
        cohort = self.method.select.choose(*self._sight)
        self._cohort_weights = self._weights(cohort)
        return self._send(messages.TRAIN, cohort.clients)

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
        needed = max(1, math.ceil(self.settings.quorum * len(self._attempt.training)))
        if len(updates) < needed:
            log.warning(
                "%d of %d updates are usable, quorum %d",
                len(updates),
                len(self._attempt.training),
                needed,
            )
            return None, None
        self._remember(updates)
        with self.meter.phase("pre"):
            self.before_average(server_round)
        self.models = self._after(updates, self._cohort_weights)
        self._attempt.divergence = divergences(updates, self.models, self.routes)
        losses = [report.loss for _, report, _ in updates]
        return None, MetricRecord({"train_loss": float(np.mean(losses))})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send every available site that has held-out rows the model it gets."""
        able = self.roster.available(grid) & (self.roster.num_test_examples > 0)
        return self._send(messages.EVALUATE, np.flatnonzero(able))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return accuracy and loss over all sites' rows; None if no site's answer is usable."""
        assert self._exchange is not None
        two = self.settings.is_personal and self.settings.shares_model
        inspect = guard.inspect_personal if two else guard.inspect_evaluation
        self._attempt.evaluation = self._exchange.answers(replies, inspect)
        reports = self._attempt.evaluated
        if not reports:
            return None
        for answer in self._attempt.evaluation:
            if answer.value is not None:
                self._accuracies[answer.client] = answer.value.accuracy
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
            accuracies=np.array(
                [self._accuracies.get(client, np.nan) for client in range(len(self.roster))]
            ),
        )

    def _weights(self, cohort: Cohort) -> np.ndarray | None:
        if cohort.weights is None:
            return None
        weights = np.zeros(len(self.roster))
        weights[cohort.clients] = cohort.weights
        return weights

    def _send(self, kind: str, clients: np.ndarray) -> list[Message]:
        self._exchange = self._exchange_models(kind, self.models, clients)
        return self._exchange.outgoing()

    def _exchange_models(
        self, kind: str, models: list[dict[str, np.ndarray]], clients: np.ndarray
    ) -> Exchange:
        routes = self.routes
        return Exchange.with_models(
            self.roster,
            kind,
            models,
            {int(client): int(routes[client]) for client in clients},
            round_number=self._attempt.round,
            attempt=self._attempt.attempt,
        )

    def _after(
        self, updates: list[Update], cohort_weights: np.ndarray | None
    ) -> list[dict[str, np.ndarray]]:
        """Return the models after the updates; one that nobody trained stays as it is."""
        if self._central is not None:
            weights = self.roster.num_examples if cohort_weights is None else cohort_weights
            asked = {a.client: float(weights[a.client]) for a in self._attempt.training}
            noisy = self._central.average(self.models[0], updates, asked)
            return [self._mixed(self.models[0], noisy)]
        # Not by the models that were sent: the clusters may have been formed since.
        return averaged(self.models, updates, self.routes, cohort_weights, self._mixed)

    def _mixed(
        self, before: dict[str, np.ndarray], after: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return what the server makes of a model and the average of its cohort's."""
        if self.settings.objective != "pfedme":
            return after
        return mixed(before, after, self.settings.pfedme_beta)

    # What a selection sees before it chooses ---------------------------------------------------

    def _inform(self, server_round: int, grid: Grid, timeout: float) -> None:
        """Exchange what the selection needs to see; it adds up in the attempt's record."""
        select = self.method.select
        rng = seeds.generator(self.settings.seed, "selection", server_round, self._attempt.attempt)
        view = self._view(server_round, grid)
        asked, rehearsing = select.ask(view, rng), select.rehearse(view, rng)
        if len(asked):
            view = replace(view, losses=self._losses(self.models, asked, grid, timeout))
        if len(rehearsing):
            copies = self._rehearse(rehearsing, grid, timeout)
            if copies and len(asked):
                view = replace(view, losses_after=self._losses(copies, asked, grid, timeout))
        if "updates" in select.needs:
            view = replace(view, updates=self._remember([]))
        if "links" in select.needs:
            view = replace(view, upload_seconds=self.meter.upload_seconds(self.roster, self.models))
        self._sight = view, rng

    def _losses(
        self, models: list[dict[str, np.ndarray]], clients: np.ndarray, grid: Grid, timeout: float
    ) -> np.ndarray:
        """Return the loss of each client under its model, (n,), NaN where not known."""
        exchange = self._exchange_models(messages.LOSS, models, clients)
        with self._timed("loss"):
            replies = grid.send_and_receive(exchange.outgoing(), timeout=timeout)
        answers = exchange.answers(replies, guard.inspect_loss)
        self._attempt.losses += answers
        losses = np.full(len(self.roster), np.nan)
        for answer in answers:
            if answer.value is not None:
                losses[answer.client] = answer.value.loss
        return losses

    def _rehearse(
        self, clients: np.ndarray, grid: Grid, timeout: float
    ) -> list[dict[str, np.ndarray]] | None:
        """Return copies of the models that some clients trained; None if no update is usable."""
        exchange = self._exchange_models(messages.TRAIN, self.models, clients)
        with self._timed("rehearse"):
            replies = list(grid.send_and_receive(exchange.outgoing(), timeout=timeout))
        template = Template.of(self.models[0])
        answers = exchange.answers(
            replies, lambda reply, asked: guard.inspect_training(reply, asked, template)
        )
        self._attempt.rehearsal = answers
        updates = [(answer, *answer.value) for answer in answers if answer.value is not None]
        self._remember(updates)
        return self._after(updates, None) if updates else None

    def _remember(self, updates: list[Update]) -> np.ndarray:
        """Keep what each client's last training added to its model, if the selection needs it."""
        if "updates" in self.method.select.needs:
            self._updates = with_latest(self._updates, updates, self.models, len(self.roster))
        return self._updates

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = self._attempt.seconds.get(phase, 0.0)
            self._attempt.seconds[phase] = spent + time.perf_counter() - began
