"""Aggregators: what becomes of a run's models when a round's updates are there."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common import models
from common.config import Settings
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
        if settings.update_privacy == "local-dp" and self._rule.fewest(settings) > 1:
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
        names: Sequence[str],
    ) -> tuple[list[Model], dict[int, str]]:
        """Return the models after the updates, and what was done to single ones, by client.

        A model that nobody trained stays as it is, and so does one with fewer updates than the
        rule can tell anything from.

        Args:
            models: before.
            updates: usable ones.
            routes: (n,) model that each client's update goes into.
            cohort_weights: (n,) weight of each client; None: its number of examples.
            names: of the clients.
        """
        after, treated = list(models), dict[int, str]()
        for index, before in enumerate(models):
            mine = [update for update in updates if routes[update[0].client] == index]
            if not mine:
                continue
            clients = [answer.client for answer, _, _ in mine]
            least = self._rule.fewest(self._settings)
            if len(mine) < least:
                words = f"{len(mine)} updates of model {index}, {self._rule_name} needs {least}"
                log.warning("%s: the model stays as it is", words)
                treated |= dict.fromkeys(clients, f"not used: {words}")
                continue
            weights = [
                float(report.num_examples if cohort_weights is None else cohort_weights[a.client])
                for a, report, _ in mine
            ]
            trained, clipped = self._clipped(before, [parameters for _, _, parameters in mine])
            combined = self._rule.combine(before, trained, np.array(weights), self._settings)
            after[index] = self.step(index, before, combined.model)
            notes = [[text] if text else [] for text in clipped]
            for place in combined.left_out:
                notes[place].append(f"left out by {self._rule_name}")
            for client, said in zip(clients, notes, strict=True):
                if said:
                    treated[client] = ", ".join(said)
                    log.info("%s: its update was %s", names[client], treated[client])
        return after, treated

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
    ) -> tuple[Sequence[Model], list[str]]:
        """Return the trained models with shortened updates, and of each what was done."""
        said = self._settings.clip_updates
        if not _clips(self._settings):
            return trained, [""] * len(trained)
        updates = flat_updates(before, trained)
        norms = np.linalg.norm(updates, axis=1)
        length = float(np.median(norms)) if said == "median" else float(said)
        shortened = robust.clipped(updates, length)
        models = [
            model | changed(before, update) if norm > length else model
            for model, update, norm in zip(trained, shortened, norms, strict=True)
        ]
        notes = [f"clipped from {n:.6g} to {length:.6g}" if n > length else "" for n in norms]
        return models, notes


def check(settings: Settings, select: Selection) -> None:
    """Raise :class:`ConfigError` if a run's aggregation cannot be had or would have no point."""
    rule, named = AGGREGATIONS.named(settings.aggregation), f"aggregation={settings.aggregation}"
    chosen = {
        named: settings.aggregation != "mean",
        f"clip-updates={settings.clip_updates}": _clips(settings),
        f"server-optimizer={settings.server_optimizer}": settings.server_optimizer != "none",
    }
    if any(chosen.values()) and not objective_of(settings).shares_model:
        word = next(word for word, is_chosen in chosen.items() if is_chosen)
        raise ConfigError(
            f"{word}: with objective={settings.objective} no model leaves a site; "
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
                f"{named}: needs at least {least} updates, and {key.replace('_', '-')} = {value}; "
                "raise it, or lower assumed-malicious"
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
