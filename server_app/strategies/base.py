"""Federated training: a whole run, from the first exchange to the last line on disk."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from common import logs, messages
from common.code_identity import code_of_run
from common.config import Settings
from common.errors import RoundError
from server_app.clustering.algorithms import Clusters
from server_app.final_evaluation.asking import FinalEvaluation
from server_app.methods import Method
from server_app.protection.noise_forecast import say_noise
from server_app.record import audit, checkpoint
from server_app.record.checkpoint import State
from server_app.record.ledger import Ledger, Pace
from server_app.record.run_folder import RunFolder
from server_app.report.words import data_set
from server_app.rounds.attempt import Attempt, Federation
from server_app.rounds.attendance import Attendance
from server_app.rounds.delegating_grid import HoldsClients
from server_app.rounds.roster import Roster
from server_app.rounds.routing import regrouped
from server_app.strategies.one_round import OneRound
from server_app.task_figures import say_task, telling_metric

if TYPE_CHECKING:
    from server_app.metering.bill import Link

log = logging.getLogger("coterie")

_ATTEMPTS = 2  # a round without one usable reply is retried once


class FederatedTraining(OneRound):
    """Rounds of training with one or several models and a rule for who trains.

    What differs between methods is in the ``Method``; a subclass exists only where other messages
    flow (``prepare``). Here is what outlives a round, whose own steps :class:`OneRound` has.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(method, settings, roster, folder)
        self.folder = folder
        self._ledger = Ledger(folder, roster, settings.learning_task)
        self._resumed: tuple[int, State] = 0, {}
        self._attendance = Attendance(code_of_run(settings))
        self._left_out: tuple[Link, ...] = ()
        """Whose messages are billed all the same."""
        self._pace = Pace(0, settings.num_server_rounds, _ATTEMPTS, settings.learning_task)
        self._best = -math.inf
        """The largest value of the target metric so far."""

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Exchange what a method needs before round 1; this one needs nothing."""

    def before_round(self, server_round: int, grid: Grid, timeout: float) -> float | None:
        """Exchange what a method needs between two rounds; this one needs nothing.

        Returns the share of the sites that it put into another cluster; None: it grouped nobody.
        """
        return None

    def federation(self, grid: Grid, timeout: float) -> Federation:
        """Return the sites as they are now, and how they are reached."""
        return Federation(self.roster, grid, self.meter, timeout, self.folder.say_asking)

    def after_training(self, grid: Grid, timeout: float) -> None:
        """Exchange what a method needs after the last round; this one needs nothing."""

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Take sites that joined before a round into a cluster, and return those that could be."""
        added = len(self.roster.joined(newcomers)) - len(self.roster)
        self.clusters = Clusters(np.append(self.clusters.labels, np.zeros(added, dtype=np.int64)))
        return newcomers

    def after_round(self, server_round: int) -> None:
        """Do what must happen when a round's line is on disk."""
        self.folder.set_status("running", done=server_round, rounds=self.settings.num_server_rounds)

    def state(self) -> State:
        """Return what the rounds to come rest on, beside the settings and the models' start."""
        return {
            "clusters": self.clusters.labels,
            "models": {str(index): model for index, model in enumerate(self.models)},
            "selection": self.method.select.state(),
            "aggregation": self.aggregator.state(),
            "best": self._best,
            **self._memory.state(),
        }

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on from what :meth:`state` returned, in place of :meth:`prepare`."""
        if self.method.select.learns_losses and "losses" not in state:
            raise RoundError(
                f"the checkpoint is of a version whose strategy={self.settings.strategy} asked for "
                "losses apart from the training; play the run anew"
            )
        self.clusters = Clusters(state["clusters"])
        self.models = [dict(model) for model in state["models"].values()]
        self.method.select.restore(state["selection"])
        self.aggregator.restore(state.get("aggregation", {}))
        self._best = float(state.get("best", -math.inf))
        self._memory.restore(state)

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
        should_stop: Callable[[int, Result], bool] | None = None,
    ) -> Result:
        """Play all rounds and write the run's record; :class:`RoundError` if one has no result.

        ``should_stop`` is asked after every round, as Flower's own from 1.43 on.
        """
        began = time.perf_counter()
        self.summary()
        if "losses" in self.method.needs:
            self.roster.require("loss", why=f"strategy={self.settings.strategy}")
        if metric := telling_metric(self.settings):
            self.roster.require("label-histogram", why=f"the metric {metric}")
        if self.settings.ends_with_evaluation:
            self.roster.require("label-histogram", why="bootstrap-resamples or decision-threshold")
        if self.settings.secagg:
            self.roster.require("masked-model", why="secagg=true")
        if self.settings.secagg and "models" in self.method.needs:
            self.roster.require("model", why=f"strategy={self.settings.strategy}")
        self.models = [messages.decode_arrays(initial_arrays)]
        say_noise(self.settings, self.models[0], len(self.roster))
        done = self._begin(grid, timeout)
        began -= self._resumed[1].get("seconds", 0.0)
        self._pace = Pace(done, num_rounds, _ATTEMPTS, self.settings.learning_task)
        result = Result()
        for server_round in range(done + 1, num_rounds + 1):
            self._greet(server_round, grid, timeout)
            drift = self.before_round(server_round, grid, timeout)
            federation = self.federation(grid, timeout)
            train_loss, score = self._play(server_round, federation, drift)
            result.train_metrics_clientapp[server_round] = MetricRecord({"train_loss": train_loss})
            named = MetricRecord({self.settings.learning_task.score_name: score})
            result.evaluate_metrics_clientapp[server_round] = named
            self._checkpoint(server_round, time.perf_counter() - began, grid)
            if self._is_done() or self._stopped(should_stop, server_round, result):
                break
        self.after_training(grid, timeout)
        result.arrays = messages.encode_arrays(self.models[0])
        self._finish(time.perf_counter() - began)
        return result

    def _is_done(self) -> bool:
        """Return whether the settings want no more rounds, and say why."""
        settings = self.settings
        if settings.stop_at_target and self._ledger.target_was_held(settings):
            log.info("the target accuracy was held: the run ends here")
            return True
        if settings.patience and self._ledger.has_stopped_improving(settings.patience):
            log.info("no lower held-out loss in %d rounds: the run ends here", settings.patience)
            return True
        return False

    def _stopped(
        self, asked: Callable[[int, Result], bool] | None, server_round: int, result: Result
    ) -> bool:
        """Return whether whoever called wants no more rounds, shown all there is so far."""
        if asked is None:
            return False
        result.arrays = messages.encode_arrays(self.models[0])
        if stops := asked(server_round, result):
            log.info("should_stop: the run ends after round %d", server_round)
        return stops

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

    def regroup(self, clusters: Clusters) -> None:
        """Put the sites into other clusters; each model starts anew from those its sites had."""
        before = self.routes
        self.clusters = clusters
        rows = self.roster.num_examples
        self.models = regrouped(self.models, before, self.routes, rows)
        self.aggregator.regroup(before, self.routes, rows)

    def leave_out(self, reasons: Mapping[int, str]) -> None:
        """Go on without some sites, for good; before round 1, when nothing rests on them yet.

        Args:
            reasons: by client.

        Raises:
            RoundError: too few would be left; with the first reason.
        """
        self._attendance.leave_out(self.roster.nodes[client] for client in reasons)
        self._left_out += tuple(self.roster.links[client] for client in reasons)
        self.roster = self.roster.without(reasons)
        self.clusters = Clusters.single(len(self.roster))
        self._ledger = Ledger(self.folder, self.roster, self.settings.learning_task)
        self.folder.write_sites(self.roster.sites)

    def _greet(self, server_round: int, grid: Grid, timeout: float) -> None:
        """Let in who connected since the last round, and say who left."""
        newcomers = self._attendance.newcomers(grid, self.roster, timeout)
        admitted = self.admit(newcomers, server_round, grid, timeout) if newcomers else None
        if newcomers and newcomers != admitted:
            kept = set(admitted.nodes) if admitted else set()
            self._attendance.leave_out(set(newcomers.nodes) - kept)
        if admitted:
            self.roster = self.roster.joined(admitted)
            self._ledger = Ledger(self.folder, self.roster, self.settings.learning_task)
            self.folder.write_sites(self.roster.sites)
            for name in admitted.names:
                cluster = self.clusters.labels[self.roster.names.index(name)]
                joined = logs.facts("joined", self.roster.facts([name]))
                log.info("%s joined, cluster %d", name, cluster, extra=joined)
        self._attendance.say_who_left(self.roster, self.clusters, self.roster.available(grid))

    def _play(
        self, server_round: int, federation: Federation, drift: float | None
    ) -> tuple[float, float]:
        """Return a round's training loss and its score, once an attempt has both."""
        before, remembered = (list(self.models), self.clusters), self.aggregator.state()
        for number in range(1, _ATTEMPTS + 1):
            attempt = Attempt(server_round, number, federation, drift)
            train_loss = self.train(attempt)
            with self.meter.phase("evaluate"):
                score = None if train_loss is None else self.evaluate(attempt)
                if score is not None:
                    self.fine_tune(attempt)
                    self._evaluate_finally(attempt)
                self._record(attempt)
            if train_loss is not None and score is not None:
                self.after_round(server_round)
                return train_loss, score
            self.models, self.clusters = before
            self.aggregator.restore(remembered)
        missing = "update"
        if train_loss is not None:
            missing = f"evaluation of what {', '.join(attempt.cohort)} trained"
        raise RoundError(
            f"round {server_round}: no usable {missing} in {_ATTEMPTS} attempts; "
            f"{attempt.first_reason()}"
        )

    def _evaluate_finally(self, attempt: Attempt) -> None:
        """Ask for intervals and a threshold after the last round, and keep them, if a run asks."""
        last = attempt.round == self.settings.num_server_rounds
        if not (last and self.settings.ends_with_evaluation):
            return
        there = np.flatnonzero(self.roster.available(attempt.federation.grid))
        asking = FinalEvaluation(self.settings, self.roster, attempt)
        self.folder.store(asking.held(self.models, self.routes, there, self.evaluators(attempt)))

    def _record(self, attempt: Attempt) -> None:
        """Put the attempt on disk, say how it went, and stop if the settings want that."""
        line = self._ledger.record(attempt, self.meter.close([*self.roster.links, *self._left_out]))
        audit.say_what_did_not_count(line)
        ended = logs.fact("round", round=line.round, attempt=line.attempt)
        log.info("%s", self._pace.words(line), extra=ended | {logs.ROUND: line})
        value = line.metric(self.settings.target_metric)
        if value > self._best:
            self._best = value
            self._write_models("best-models")
        if self.settings.on_bad_update == "fail" and (line.rejected or line.missing):
            raise RoundError(f"round {line.round}: {attempt.first_reason()} (on-bad-update=fail)")

    def _finish(self, seconds: float) -> None:
        self._write_models()
        results = self._ledger.results(seconds, self.settings)
        num_parameters = sum(value.size for value in self.models[0].values())
        self.folder.store(replace(results, num_parameters=num_parameters))

    def _write_models(self, where: str = "models") -> None:
        kind = "cluster" if self.method.route.model_per_cluster else "model"
        for index, parameters in enumerate(filter(None, self.models)):
            self.folder.write_model(f"{kind}-{index}", parameters, where=where)

    def summary(self) -> None:
        """Log what is about to run."""
        settings = self.settings
        log.info(
            "%s on %s: %d sites, %d training rows, %d rounds",
            settings.strategy,
            data_set(settings.dataset),
            len(self.roster),
            int(self.roster.num_examples.sum()),
            settings.num_server_rounds,
        )
        say_task(settings)
