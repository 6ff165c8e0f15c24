"""Aggregators: what becomes of a run's models when a round's updates are there."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common import models
from common.config import Settings, kebab_case
from common.config.aggregation import AggregationSettings
from common.errors import ConfigError
from common.messages import Parameters
from common.objectives import objective_of
from server_app.aggregation import robust
from server_app.aggregation.rules import AGGREGATIONS, changed, flat_updates
from server_app.aggregation.server_optimizers import (
    ServerOptimizer,
    ServerOptimizerSettings,
    server_optimizer,
)
from server_app.protection import catalogue
from server_app.rounds.attempt import Update
from server_app.rounds.divergence import weight_divergences
from server_app.rounds.roster import Roster
from server_app.selection.rules import Selection

__all__ = ["Aggregator", "check", "divergences"]

log = logging.getLogger("coterie")

Model = dict[str, np.ndarray]


class Aggregator:
    """The rules of a run: clipping, an average, the objective's step and the server's optimiser."""

    def __init__(self, settings: Settings, roster: Roster) -> None:
        self._settings = settings
        self._rule = AGGREGATIONS.named(settings.aggregation)
        self._optimizer = _optimizer(settings, roster)
        if settings.update_privacy == "local-dp" and self._rule.picks:
            log.warning(
                "aggregation=%s under update-privacy=local-dp: which updates lie close together "
                "is mostly decided by the noise",
                settings.aggregation,
            )

    def after(
        self,
        models: Sequence[Model],
        updates: Sequence[Update],
        routes: np.ndarray,
        cohort_weights: np.ndarray | None,
    ) -> tuple[list[Model], dict[int, str]]:
        """Return the models after the updates, and what was done to single ones, by client.

        A model that nobody trained stays as it is, and so does one with fewer updates than the
        rule can tell anything from.

        Args:
            models: before.
            updates: usable ones.
            routes: (n,) model that each client's update goes into.
            cohort_weights: (n,) weight of each client; None: its number of examples.
        """
        after, treated = list(models), dict[int, str]()
        for index in range(len(models)):
            mine = [update for update in updates if routes[update[0].client] == index]
            if mine:
                after[index], said = self._after_one(index, models[index], mine, cohort_weights)
                treated |= said
        return after, treated

    def _after_one(
        self,
        index: int,
        before: Model,
        updates: Sequence[Update],
        cohort_weights: np.ndarray | None,
    ) -> tuple[Model, dict[int, str]]:
        """Return one model after its updates, at least one, and what was done to them."""
        clients = [answer.client for answer, _, _ in updates]
        least = self._rule.fewest(self._settings)
        if len(updates) < least:
            words = f"{len(updates)} updates of model {index}, {self._rule_name} needs {least}"
            log.warning("%s: the model stays as it is", words)
            return before, dict.fromkeys(clients, f"not used: {words}")
        rows = [float(report.num_examples) for _, report, _ in updates]
        weights = np.array(rows) if cohort_weights is None else cohort_weights[clients]
        trained, notes = self._clipped(before, [parameters for _, _, parameters in updates])
        combined = self._rule.combine(before, trained, weights, self._settings)
        for place in combined.left_out:
            notes[place] += [f"left out by {self._rule_name}"]
        treated = {c: ", ".join(said) for c, said in zip(clients, notes, strict=True) if said}
        return self.step(index, before, combined.model), treated

    def step(self, index: int, before: Parameters, average: Model) -> Model:
        """Return what the server makes of a model and the average of its cohort's."""
        stepped = objective_of(self._settings).step(dict(before), average, self._settings)
        return self._optimizer.step(index, before, stepped) if self._optimizer else stepped

    def regroup(self, before: np.ndarray, after: np.ndarray, rows: np.ndarray) -> None:
        """Take along what is remembered of each model, as ``routing.regrouped`` the models."""
        if self._optimizer:
            self._optimizer.regroup(before, after, rows)

    def state(self) -> dict[str, Any]:
        """Return what is remembered of the models, as a checkpoint keeps it."""
        return self._optimizer.state() if self._optimizer else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        if self._optimizer:
            self._optimizer.restore(state)

    @property
    def _rule_name(self) -> str:
        return f"aggregation={self._settings.aggregation}"

    def _clipped(
        self, before: Parameters, trained: Sequence[Model]
    ) -> tuple[Sequence[Model], list[list[str]]]:
        """Return the trained models with shortened updates, and of each what was done."""
        said = self._settings.clip_updates
        if not _clips(self._settings):
            return trained, [[] for _ in trained]
        updates = flat_updates(before, trained)
        norms = np.linalg.norm(updates, axis=1)
        length = float(np.median(norms)) if said == "median" else float(said)
        shortened = robust.clipped(updates, length)
        models = [
            model | changed(before, update) if norm > length else model
            for model, update, norm in zip(trained, shortened, norms, strict=True)
        ]
        notes = [[f"clipped from {n:.6g} to {length:.6g}"] if n > length else [] for n in norms]
        return models, notes


def check(settings: Settings, select: Selection) -> None:
    """Raise :class:`ConfigError` if a run's aggregation cannot be had or would have no point."""
    rule, named = AGGREGATIONS.named(settings.aggregation), f"aggregation={settings.aggregation}"
    chosen = [
        f"{kebab_case(name)}={getattr(settings, name)}"
        for name, field in AggregationSettings.model_fields.items()
        if getattr(settings, name) != field.default
    ]
    if chosen and not objective_of(settings).shares_model:
        raise ConfigError(
            f"{chosen[0]}: with objective={settings.objective} no model leaves a site; "
            "leave one of them out"
        )
    for word, needs_updates in ((named, rule.needs_updates), ("clip-updates", _clips(settings))):
        if needs_updates:
            catalogue.check(frozenset({"updates"}), settings, of=word)
    if select.weighs and not rule.weighs:
        raise ConfigError(
            f"{named} counts every update alike, and strategy={settings.strategy} rests on the "
            "weights of its cohort; use aggregation=mean or geometric-median"
        )
    least = rule.fewest(settings)
    for key in ("num_clients", "clients_per_round"):
        value = getattr(settings, key)
        if 0 < value < least:
            raise ConfigError(
                f"{named}: needs at least {least} updates, and {kebab_case(key)} = {value}; "
                "raise it, or use another aggregation"
            )


def divergences(
    updates: Sequence[Update], models: Sequence[Model], routes: np.ndarray
) -> dict[int, float]:
    """Return each client's distance from the model that its update went into."""
    found: dict[int, float] = {}
    for index, model in enumerate(models):
        mine = [update for update in updates if routes[update[0].client] == index]
        distances = weight_divergences([trained for _, _, trained in mine], model)
        clients = [answer.client for answer, _, _ in mine]
        found |= dict(zip(clients, distances or (), strict=False))
    return found


def _clips(settings: Settings) -> bool:
    return settings.clip_updates == "median" or float(settings.clip_updates) > 0


def _optimizer(settings: Settings, roster: Roster) -> ServerOptimizer | None:
    if settings.server_optimizer == "none":
        return None
    site, own = roster.sites[0], settings.of(ServerOptimizerSettings)
    return server_optimizer(
        settings.server_optimizer,
        learning_rate=own.server_learning_rate,
        beta1=own.server_beta1,
        beta2=own.server_beta2,
        tau=own.server_tau,
        buffers=models.buffer_names(settings.model, tuple(site.input_shape), site.num_classes),
    )
