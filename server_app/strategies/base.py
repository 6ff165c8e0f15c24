"""Federated training: the rounds that every strategy plays, from a view to a line on disk."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from common import logs, messages, seeds
from common.config import Settings
from common.errors import RoundError
from common.objectives import objective_of
from server_app.aggregation.mean import averaged, divergences, regrouped
from server_app.clustering.algorithms import Clusters
from server_app.metering.run_meter import RunMeter
from server_app.methods import Method
from server_app.protection.central_dp import CentralDp
from server_app.protection.secagg import SecaggAverages
from server_app.record import audit, checkpoint
from server_app.record.checkpoint import State
from server_app.record.ledger import Ledger, Score, progress
from server_app.record.run_folder import RunFolder
from server_app.rounds import guard
from server_app.rounds.attempt import Attempt, Channel, Update
from server_app.rounds.attendance import Attendance
from server_app.rounds.delegating_grid import HoldsClients
from server_app.rounds.exchange import Exchange
from server_app.rounds.guard import Template
from server_app.rounds.memory import Memory
from server_app.rounds.roster import Roster
from server_app.selection.rules import View
from server_app.strategies.own_rounds import OwnRounds

log = logging.getLogger("coterie")

_ATTEMPTS = 2  # a round without one usable reply is retried once


class FederatedTraining(OwnRounds):
    """Rounds of training with one or several models and a rule for who trains.

    What differs between methods is in the ``Method``; a subclass exists only where other messages
    flow (``prepare``). Here is what outlives a round; a round itself is an
    :class:`~server_app.rounds.attempt.Attempt` that goes from step to step.
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
        self._resumed: tuple[int, State] = 0, {}
        self._attendance = Attendance()
        self._memory = Memory()
        self._central = CentralDp.chosen(settings, folder)

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Exchange what a method needs before round 1; this one needs nothing."""

    def before_round(self, server_round: int, grid: Grid, timeout: float) -> float | None:
        """Exchange what a method needs between two rounds; this one needs nothing.

        Returns the share of the sites that it put into another cluster; None: it grouped nobody.
        """
        return None

    def after_training(self, grid: Grid, timeout: float) -> None:
        """Exchange what a method needs after the last round; this one needs nothing."""

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Take sites that joined before a round into a cluster, and return those that could be."""
        added = len(self.roster.joined(newcomers)) - len(self.roster)
        self.clusters = Clusters(np.append(self.clusters.labels, np.zeros(added, dtype=np.int64)))
        return newcomers

    def before_average(self, attempt: Attempt) -> None:
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
            **self._memory.state(),
        }

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on from what :meth:`state` returned, in place of :meth:`prepare`."""
        self.clusters = Clusters(state["clusters"])
        self.models = [dict(model) for model in state["models"].values()]
        self.method.select.restore(state["selection"])
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
            self._greet(server_round, grid, timeout)
            drift = self.before_round(server_round, grid, timeout)
            channel = Channel(self.roster, grid, self.meter, timeout)
            train_loss, accuracy = self._play(server_round, channel, drift)
            result.train_metrics_clientapp[server_round] = MetricRecord({"train_loss": train_loss})
            result.evaluate_metrics_clientapp[server_round] = MetricRecord({"accuracy": accuracy})
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

    def _greet(self, server_round: int, grid: Grid, timeout: float) -> None:
        """Let in who connected since the last round, and say who left."""
        newcomers = self._attendance.newcomers(grid, self.roster, timeout)
        admitted = self.admit(newcomers, server_round, grid, timeout) if newcomers else None
        if newcomers and newcomers != admitted:
            kept = set(admitted.nodes) if admitted else set()
            self._attendance.leave_out(set(newcomers.nodes) - kept)
        if admitted:
            self.roster = self.roster.joined(admitted)
            self._ledger = Ledger(self.folder, self.roster)
            self.folder.write_json("sites.json", [vars(site) for site in self.roster.sites])
            for name in admitted.names:
                cluster = self.clusters.labels[self.roster.names.index(name)]
                joined = logs.facts("joined", self.roster.facts([name]))
                log.info("%s joined, cluster %d", name, cluster, extra=joined)
        self._attendance.say_who_left(self.roster, self.clusters, self.roster.available(grid))

    def _play(
        self, server_round: int, channel: Channel, drift: float | None
    ) -> tuple[float, float]:
        """Return a round's training loss in nats and its accuracy, once an attempt has both."""
        before = list(self.models), self.clusters
        for number in range(1, _ATTEMPTS + 1):
            attempt = Attempt(server_round, number, channel, drift)
            train_loss = self._train(attempt)
            with self.meter.phase("evaluate"):
                accuracy = None if train_loss is None else self._evaluate(attempt)
                self._record(attempt)
            if train_loss is not None and accuracy is not None:
                self.after_round(server_round)
                return train_loss, accuracy
            self.models, self.clusters = before
        raise RoundError(
            f"round {server_round}: no usable {'update' if train_loss is None else 'evaluation'} "
            f"in {_ATTEMPTS} attempts; {attempt.first_reason()}"
        )

    def _record(self, attempt: Attempt) -> None:
        """Put the attempt on disk, say how it went, and stop if the settings want that."""
        line = self._ledger.record(attempt, self.meter.close(self.roster.links))
        audit.say_what_did_not_count(line)
        log.info("%s", progress(line, self.settings.num_server_rounds, _ATTEMPTS))
        if self.settings.on_bad_update == "fail" and (line["rejected"] or line["missing"]):
            raise RoundError(
                f"round {line['round']}: {attempt.first_reason()} (on-bad-update=fail)"
            )

    def _finish(self, seconds: float) -> None:
        kind = "cluster" if self.method.route.model_per_cluster else "model"
        for index, parameters in enumerate(filter(None, self.models)):
            self.folder.write_model(f"{kind}-{index}", parameters)
        self.folder.write_json("results.json", self._ledger.results(seconds, self.settings))

    # A round, from step to step -----------------------------------------------------------------

    def _train(self, attempt: Attempt) -> float | None:
        """Choose the cohort, have it train, and make models of that.

        Returns the mean training loss, NaN if sites keep it to themselves; None: nothing usable.
        """
        rng = seeds.generator(self.settings.seed, "selection", attempt.round, attempt.attempt)
        view = self._informed(attempt, rng)
        with attempt.timed("server"):
            cohort = self.method.select.choose(view, rng)
        with self.meter.phase("train"):
            if self.settings.secagg and not self.needs_updates(attempt.round):
                # Of what each model's members train, only the mean is seen.
                sums = SecaggAverages(attempt, self.settings)
                found = sums.averaged(self.models, cohort, self.routes, self._mixed)
                self.models, losses = found
                return float(np.mean(losses)) if losses else None
            asked = self._ask_to_train(attempt, "train", cohort.clients, attempt.trained)
            with attempt.timed("server"):
                return self._aggregated(attempt, cohort.by_client(len(self.roster)), asked)

    def _aggregated(
        self, attempt: Attempt, cohort_weights: np.ndarray | None, asked: Sequence[int]
    ) -> float | None:
        """Make models of the usable updates; return their mean loss, None if they are too few."""
        updates = attempt.trained
        needed = max(1, math.ceil(self.settings.quorum * len(asked)))
        if len(updates) < needed:
            words = len(updates), len(asked), needed
            log.warning("%d of %d updates are usable, quorum %d", *words)
            return None
        self._remember(updates)
        with self.meter.phase("pre"):
            self.before_average(attempt)
        self.models = self._after(updates, cohort_weights, asked)
        attempt.divergence = divergences(updates, self.models, self.routes)
        return float(np.mean([report.loss for _, report, _ in updates]))

    def _evaluate(self, attempt: Attempt) -> float | None:
        """Have every site with held-out rows evaluate its model.

        Returns the accuracy over all sites' rows; None if no site's answer is usable.
        """
        able = self.roster.available(attempt.channel.grid) & (self.roster.num_test_examples > 0)
        objective = objective_of(self.settings)
        two = objective.is_personal and objective.shares_model
        inspect = guard.inspect_personal if two else guard.inspect_evaluation
        exchange = self._with_models(attempt, messages.EVALUATE, self.models, np.flatnonzero(able))
        for answer in attempt.ask("evaluate", exchange, inspect):
            self._memory.evaluated(answer)
            attempt.evaluated += [] if answer.value is None else [answer.value]
        return Score.of(attempt.evaluated).accuracy if attempt.evaluated else None

    def _ask_to_train(
        self, attempt: Attempt, phase: str, clients: np.ndarray, usable: list[Update]
    ) -> list[int]:
        """Have clients train their models, and add what may count; return whom that was asked."""
        template = Template.of(self.models[0])
        exchange = self._with_models(attempt, messages.TRAIN, self.models, clients)
        answers = attempt.ask(
            phase, exchange, lambda reply, asked: guard.inspect_training(reply, asked, template)
        )
        usable += [(answer, *answer.value) for answer in answers if answer.value is not None]
        return [answer.client for answer in answers]

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

    def _with_models(
        self,
        attempt: Attempt,
        kind: str,
        models: list[dict[str, np.ndarray]],
        clients: np.ndarray,
    ) -> Exchange:
        """Return the exchange that sends some clients the model each of them gets."""
        routes = self.routes
        return Exchange.with_models(
            self.roster,
            kind,
            models,
            {int(client): int(routes[client]) for client in clients},
            round_number=attempt.round,
            attempt=attempt.attempt,
        )

    def _after(
        self, updates: list[Update], cohort_weights: np.ndarray | None, asked: Sequence[int]
    ) -> list[dict[str, np.ndarray]]:
        """Return the models after the updates; one that nobody trained stays as it is."""
        if self._central is not None:
            weights = self.roster.num_examples if cohort_weights is None else cohort_weights
            shares = {client: float(weights[client]) for client in asked}
            noisy = self._central.average(self.models[0], updates, shares)
            return [self._mixed(self.models[0], noisy)]
        # Not by the models that were sent: the clusters may have been formed since.
        return averaged(self.models, updates, self.routes, cohort_weights, self._mixed)

    def _mixed(
        self, before: dict[str, np.ndarray], after: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return what the server makes of a model and the average of its cohort's."""
        return objective_of(self.settings).step(before, after, self.settings)

    # What a selection sees before it chooses ---------------------------------------------------

    def _informed(self, attempt: Attempt, rng: np.random.Generator) -> View:
        """Return what the selection is shown, some of which the sites must be asked for."""
        select = self.method.select
        view = View(
            round=attempt.round,
            available=self.roster.available(attempt.channel.grid),
            num_examples=self.roster.num_examples,
            clusters=self.clusters,
            accuracies=self._memory.accuracies(len(self.roster)),
        )
        asked, rehearsing = select.ask(view, rng), select.rehearse(view, rng)
        if len(asked):
            view = replace(view, losses=self._losses(attempt, self.models, asked))
        if len(rehearsing):
            copies = self._rehearsed(attempt, rehearsing)
            if copies and len(asked):
                view = replace(view, losses_after=self._losses(attempt, copies, asked))
        view = replace(view, updates=self._remember([]))
        if "links" in select.needs:
            seconds = self.meter.upload_seconds(self.roster.link_rates, self.models[0])
            view = replace(view, upload_seconds=seconds)
        return view

    def _losses(
        self, attempt: Attempt, models: list[dict[str, np.ndarray]], clients: np.ndarray
    ) -> np.ndarray:
        """Return the loss of each client under its model, (n,), NaN where not known."""
        exchange = self._with_models(attempt, messages.LOSS, models, clients)
        losses = np.full(len(self.roster), np.nan)
        for answer in attempt.ask("loss", exchange, guard.inspect_loss):
            if answer.value is not None:
                losses[answer.client] = answer.value.loss
        return losses

    def _rehearsed(
        self, attempt: Attempt, clients: np.ndarray
    ) -> list[dict[str, np.ndarray]] | None:
        """Return copies of the models that some clients trained; None if no update is usable."""
        updates: list[Update] = []
        asked = self._ask_to_train(attempt, "rehearse", clients, updates)
        self._remember(updates)
        return self._after(updates, None, asked) if updates else None

    def _remember(self, updates: list[Update]) -> np.ndarray | None:
        """Keep what each client's last training added, and return it, if the selection needs it."""
        if "updates" not in self.method.select.needs:
            return None
        return self._memory.trained(updates, self.models, len(self.roster))
