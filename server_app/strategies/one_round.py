"""Round: from a view of the sites to their evaluation, step by step."""

import functools
import logging
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from common import messages, seeds
from common.config import Settings
from common.messages import Asked, FineTuneReport, LossReport, Reply
from server_app import task_figures
from server_app.aggregation.aggregator import Aggregator, divergences
from server_app.clustering.algorithms import Clusters
from server_app.metering.run_meter import RunMeter
from server_app.methods import Method
from server_app.protection.central_dp import CentralDp
from server_app.protection.secagg import SecaggAverages
from server_app.record.run_folder import RunFolder
from server_app.rounds import guard
from server_app.rounds.attempt import Attempt, Update
from server_app.rounds.exchange import Exchange
from server_app.rounds.memory import Memory
from server_app.rounds.roster import Roster
from server_app.rounds.scores import pooled_score
from server_app.selection.rules import Cohort, ToldLosses, View
from server_app.strategies.own_rounds import OwnRounds
from server_app.strategies.summed_fits import SummedFits

log = logging.getLogger("coterie")


class OneRound(OwnRounds):
    """The steps of a round, each with the attempt in hand, on the models and clusters there are."""

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        self.method = method
        self.settings = settings
        self.roster = roster
        self.clusters = Clusters.single(len(roster))
        self.models: list[dict[str, np.ndarray]] = []
        self.meter = RunMeter()
        """Where the grid enters messages and this class its work; the app opens another."""
        self._memory = Memory(settings)
        self.aggregator = Aggregator(settings, roster)
        self._central = CentralDp.chosen(settings, folder)
        self._fits = SummedFits.chosen(settings, roster, folder)

    def before_average(self, attempt: Attempt) -> None:
        """Do what must happen once a round's updates are there; this one needs nothing."""

    def shown(self, view: View) -> View:
        """Add to a view what was asked of the sites before round 1; this one asked nothing."""
        return view

    def needs_updates(self, server_round: int) -> bool:
        """Return whether single updates must be seen in a round; averages will do for this one."""
        return False

    @property
    def routes(self) -> np.ndarray:
        """The model index of each client, (n,) ints."""
        return self.method.route(self.clusters)

    # From step to step -------------------------------------------------------------------------

    def train(self, attempt: Attempt) -> float | None:
        """Choose the cohort, have it train, and make models of that.

        Returns the mean training loss, NaN if sites keep it to themselves; None: nothing usable.
        """
        if self._fits is not None:
            return self._fitted(attempt, self._fits)
        rng = seeds.generator(self.settings.seed, "selection", attempt.round, attempt.attempt)
        view = self._informed(attempt, rng)
        if view.losses is not None and not np.isfinite(view.losses).any():
            log.warning("no site told a loss that is usable, by which others would be chosen")
            return None
        with attempt.timed("server"):
            cohort = self.aggregator.weighed(self.method.select.choose(view, rng))
            self._memory.turns.took(cohort.clients)
        summed = self.settings.secagg and not self.needs_updates(attempt.round)
        if self.method.select.learns_losses and self._losses_come_apart(summed=summed):
            self._have_losses_told(attempt, cohort.clients)
        with self.meter.phase("train"):
            if summed:
                return self._summed(attempt, cohort)
            asked = self._ask_to_train(attempt, "train", cohort.clients, attempt.trained)
            with attempt.timed("server"):
                return self._aggregated(attempt, cohort.by_client(len(self.roster)), asked)

    def _fitted(self, attempt: Attempt, fits: SummedFits) -> float | None:
        """Make models of sums over rows; return their mean loss, None where a sum lacks a site."""
        with self.meter.phase("train"):
            models = fits.play(attempt, self.routes)
        if models is None:
            return None
        self.models, attempt.fitted = models, fits.names
        return math.nan

    def _summed(self, attempt: Attempt, cohort: Cohort) -> float | None:
        """Make models of what each model's members train, of which only the mean is seen."""
        SecaggAverages.of_losses(attempt, self.settings).check_groups(self.routes)
        return self.sum_of_models(attempt, cohort)

    def sum_of_models(self, attempt: Attempt, cohort: Cohort) -> float | None:
        """Make models of the sums over a cohort; return their mean loss, None if all failed."""
        sums = SecaggAverages.of_losses(attempt, self.settings)
        sent = self.aggregator.sent(self.models)
        averages, losses = sums.averaged(sent, cohort, self.routes)
        told = [self.roster.names.index(site) for one in attempt.sums for site in one.sites]
        self.models = self.aggregator.after_sums(
            self.models, averages, told, self.routes, self.roster.num_examples
        )
        return float(np.mean(losses)) if losses else None

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
        after, treated = self._after(attempt, updates, cohort_weights, asked)
        if not all(map(_is_finite, after)):
            names = ", ".join(attempt.cohort)
            attempt.spoilt = f"what {names} trained makes a model that holds NaN or infinity"
            log.warning("the models before are kept: %s", attempt.spoilt)
            return None
        self.models, attempt.treated = after, treated
        attempt.divergence = divergences(updates, self.models, self.routes)
        return float(np.mean([report.loss for _, report, _ in updates]))

    def evaluate(self, attempt: Attempt) -> float | None:
        """Have every site with held-out rows evaluate its model.

        Returns the score over all sites' rows; None if no site's answer is usable.
        """
        clients = self.evaluators(attempt)
        exchange = self._with_models(attempt, messages.EVALUATE, self.models, clients)
        inspect = task_figures.inspection(self.settings)
        answers = attempt.ask(exchange, inspect)
        told = {answer.client: answer.value for answer in answers if answer.value is not None}
        for client, (report, _) in told.items():
            self._memory.evaluated(client, report)
        attempt.evaluated += [report for report, _ in told.values()]
        attempt.metrics = task_figures.metrics_of(told)
        return pooled_score(attempt.evaluated, self.settings.learning_task)

    def fine_tune(self, attempt: Attempt) -> None:
        """Have every site train the model that it uses on after the last round, if a run asks."""
        if attempt.round < self.settings.num_server_rounds or not self.settings.tuning_epochs:
            return
        clients = self.evaluators(attempt)
        exchange = self._with_models(attempt, messages.FINE_TUNE, self.models, clients)
        with self.meter.phase("train"):
            task = self.settings.learning_task
            read = functools.partial(guard.fine_tuning, task=task)
            answers = attempt.ask(exchange, read)
        attempt.tuned += [answer.value for answer in answers if answer.value is not None]

    def evaluators(self, attempt: Attempt) -> np.ndarray:
        """Return who evaluates a model: all available clients with held-out rows, ascending."""
        available = self.roster.available(attempt.federation.grid)
        return np.flatnonzero(available & (self.roster.num_test_examples > 0))

    def _ask_to_train(
        self, attempt: Attempt, phase: str, clients: np.ndarray, usable: list[Update]
    ) -> list[int]:
        """Have clients train their models, and add what may count; return whom that was asked."""
        sent = self.aggregator.sent(self.models)
        template = messages.Template.of(sent[0])
        noisy = self.settings.update_privacy == "local-dp"
        learns = phase == "train" and self.method.select.learns_losses
        tells = learns and not self._losses_come_apart(summed=False)
        kind = messages.TRAIN_TELLING if tells else messages.TRAIN
        exchange = self._with_models(attempt, kind, sent, clients)
        answers = attempt.ask(
            exchange,
            lambda reply, asked: guard.training(
                reply, template, may_withhold_loss=noisy, finite=False
            ),
            phase=phase,
            review=lambda answers: self._memory.norms.judged(answers, self.models),
        )
        for answer in answers:
            if answer.value is not None:
                report, arrays = answer.value
                own = {name: arrays[name] for name in self.models[0]}
                attempt.beside[answer.client] = {n: v for n, v in arrays.items() if n not in own}
                usable.append((answer, report, own))
                if isinstance(report, messages.TellingReport):
                    told = report.loss_before, report.rms_loss_before
                    self._memory.told(answer.client, *told, attempt.round)
            elif tells:
                self._memory.told_nothing(answer.client, attempt.round)
        return [answer.client for answer in answers]

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
        self,
        attempt: Attempt,
        updates: list[Update],
        cohort_weights: np.ndarray | None,
        asked: Sequence[int],
    ) -> tuple[list[dict[str, np.ndarray]], dict[int, str]]:
        """Return the models after the updates, and what was done to single ones, by client."""
        if self._central is not None:
            weights = self.roster.num_examples if cohort_weights is None else cohort_weights
            shares = {client: float(weights[client]) for client in asked}
            noisy = self._central.average(self.models[0], updates, shares)
            return [self.aggregator.step(0, self.models[0], noisy)], {}
        # Not by the models that were sent: the clusters may have been formed since.
        rows = self.roster.num_examples
        return self.aggregator.after(
            self.models, updates, self.routes, cohort_weights, attempt.beside, rows
        )

    # What a selection sees before it chooses ---------------------------------------------------

    def _informed(self, attempt: Attempt, rng: np.random.Generator) -> View:
        """Return what the selection is shown, some of which the sites must be asked for."""
        select = self.method.select
        available = self.roster.available(attempt.federation.grid)
        view = View(
            round=attempt.round,
            available=available,
            num_examples=self.roster.num_examples,
            clusters=self.clusters,
            scores=self._memory.scores(len(self.roster)),
            turns=self._memory.turns.seen(available),
            num_classes=self.roster.sites[0].num_classes,
        )
        view = self.shown(view)
        if select.learns_losses:
            view = replace(view, told=ToldLosses(*self._memory.losses(len(self.roster))))
        if "links" in select.needs:
            seconds = self.meter.upload_seconds(self.roster.link_rates, self.models[0])
            view = replace(view, upload_seconds=seconds)
        asked, rehearsing = select.ask(view, rng), select.rehearse(view, rng)
        if len(asked):
            losses, rms_losses = self._losses(attempt, self.models, asked)
            view = replace(view, losses=losses, rms_losses=rms_losses)
        if len(rehearsing):
            copies = self._rehearsed(attempt, rehearsing)
            if copies and len(asked):
                view = replace(view, losses_after=self._losses(attempt, copies, asked)[0])
        view = replace(view, updates=self._remember([]))
        return view

    def _losses_come_apart(self, *, summed: bool) -> bool:
        """Return whether a cohort tells its losses before it trains, not with that.

        Of a sum nobody tells anything, and no noise of an update covers a loss beside it.
        """
        return summed or self.settings.update_privacy == "local-dp"

    def _have_losses_told(self, attempt: Attempt, clients: np.ndarray) -> None:
        """Ask a cohort for its losses before it trains."""
        losses, rms_losses = self._losses(attempt, self.models, clients)
        for client in map(int, clients):
            if np.isfinite(losses[client]):
                told = float(losses[client]), float(rms_losses[client])
                self._memory.told(client, *told, attempt.round)
            else:
                self._memory.told_nothing(client, attempt.round)

    def _losses(
        self, attempt: Attempt, models: list[dict[str, np.ndarray]], clients: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each client's loss under its model, mean and root mean square, (n,) each.

        NaN where not known.
        """
        exchange = self._with_models(attempt, messages.LOSS, models, clients)
        losses, rms_losses = np.full((2, len(self.roster)), np.nan)
        for answer in attempt.ask(exchange, _measured):
            if answer.value is not None:
                losses[answer.client] = answer.value.loss
                rms_losses[answer.client] = answer.value.rms_loss
        return losses, rms_losses

    def _rehearsed(
        self, attempt: Attempt, clients: np.ndarray
    ) -> list[dict[str, np.ndarray]] | None:
        """Return copies of the models that some clients trained; None if no update is usable."""
        updates: list[Update] = []
        asked = self._ask_to_train(attempt, "rehearse", clients, updates)
        self._remember(updates)
        if not updates:
            return None
        remembered = self.aggregator.state()
        copies, _ = self._after(attempt, updates, None, asked)
        self.aggregator.restore(remembered)  # they are tried, not taken
        return copies

    def _remember(self, updates: list[Update]) -> np.ndarray | None:
        """Keep what each client's last training added, and return it, if the selection needs it."""
        if "updates" not in self.method.select.needs:
            return None
        return self._memory.trained(updates, self.models, len(self.roster))


def _is_finite(model: messages.Parameters) -> bool:
    return all(bool(np.isfinite(value).all()) for value in model.values())


def _tuned(reply: Reply, asked: Asked) -> FineTuneReport:
    return reply.of(FineTuneReport)


def _measured(reply: Reply, asked: Asked) -> LossReport:
    return reply.of(LossReport)
