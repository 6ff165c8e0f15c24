"""Fits from sums: a round of a run whose model is no average, step by step.

A round is one of Newton's steps, or a tree; its steps are exchanges of their own. Every model, of
all sites or of a group, has a fit, and those of all groups take their steps together.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from common import messages
from common.config import Settings
from common.data.preprocessing import Preprocessing
from common.errors import MessageError
from common.exact.coefficients import INTERCEPT, Coefficient, coefficient_table, to_csv
from common.exact.contract import LARGEST, SummedFit, SummedModel, Whole
from common.exact.glm import Glm, SteepError
from common.exact.learners import learner
from common.exact.trees import Trees
from common.messages import Asked, Order, Reply
from common.messages.row_sums import ROW_SUMS, SUMS, SumsReport
from common.tables.measure import Measure
from server_app.protection.whole_sums import sums_of_steps
from server_app.record.fitted_format import CoefficientLine, FittedFile, FittedModel
from server_app.record.run_folder import PREPROCESSING, RunFolder
from server_app.rounds.attempt import Attempt
from server_app.rounds.exchange import Exchange
from server_app.rounds.roster import Roster

__all__ = ["SummedFits"]

log = logging.getLogger("coterie")

_MOST_EXCHANGES = 10_000  # of one attempt: each has a number of its own at the sites


class SummedFits:
    """The fits of a run's models, each a value that a round replaces."""

    def __init__(
        self, model: SummedModel, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        self.model = model
        self._site = roster.sites[0]
        self._folder = folder
        self.fits: dict[int, SummedFit] = {}
        """By index of the model."""
        self.members: dict[int, tuple[str, ...]] = {}
        """By index of the model, the sites whose rows it is fitted to."""
        self._settings = settings

    @classmethod
    def chosen(cls, settings: Settings, roster: Roster, folder: RunFolder) -> Self | None:
        """Return the fits of a run whose model is one of sums; None: it is a network."""
        model = learner(settings, roster.sites[0].num_classes)
        return None if model is None else cls(model, settings, roster, folder)

    @property
    def finished(self) -> bool:
        """Whether every model is there."""
        return bool(self.fits) and all(fit.finished for fit in self.fits.values())

    @property
    def names(self) -> tuple[str, ...]:
        """All sites whose rows models are fitted to."""
        return tuple(sorted(name for names in self.members.values() for name in names))

    def require_releases(self, roster: Roster) -> None:
        """Refuse sites that do not release their sums, before the first step."""
        if not self._settings.secagg:
            why = f"model={self._settings.model} in the clear; use secagg=true, or have it released"
            roster.require("row-sums", why=why)

    # A round -------------------------------------------------------------------------------------

    def play(self, attempt: Attempt, routes: np.ndarray) -> list[dict[str, np.ndarray]] | None:
        """Return the models after a round; None where a sum lacks a site.

        Nothing of a round counts that did not come to its end.

        Args:
            attempt: that asks, and has on record what came.
            routes: (n,) model of each client; -1: none.
        """
        roster = attempt.federation.roster
        fits = dict(self.fits) or self._started(attempt, routes)
        clients = {
            model: [roster.names.index(name) for name in names]
            for model, names in self.members.items()
        }
        open_ = [model for model in sorted(fits) if not fits[model].finished]
        exchange = 0
        while open_:
            exchange += 1
            steps = {model: fits[model] for model in open_}
            members = {client: model for model in open_ for client in clients[model]}
            sums = self._sums(attempt, exchange, steps, members)
            if len(sums) < len(steps):
                return None
            with attempt.timed("server"):
                for model in open_:
                    fits[model] = self._updated(fits[model], sums[model])
            open_ = [model for model in open_ if not fits[model].ended]
        self.fits = fits
        return [dict(self.model.model(fits[model])) for model in sorted(fits)]

    def _updated(self, fit: SummedFit, sums: Whole) -> SummedFit:
        """Return a fit after a step; an error of a column says its name."""
        try:
            return self.model.update(fit, sums)
        except SteepError as error:
            names = [*self._columns(self._made()), INTERCEPT]
            raise SteepError(error.column, names[error.column]) from None

    def _started(self, attempt: Attempt, routes: np.ndarray) -> dict[int, SummedFit]:
        """Return a fit of each model before its first step, with who is there as its sites."""
        roster = attempt.federation.roster
        available = roster.available(attempt.federation.grid)
        fits = {}
        for model in range(int(routes.max()) + 1):
            clients = np.flatnonzero((routes == model) & available & (roster.num_examples > 0))
            self.members[model] = tuple(roster.names[client] for client in clients)
            site = roster.sites[0]
            rows = int(roster.num_examples[clients].sum())
            fits[model] = self.model.start(int(np.prod(site.input_shape)), rows)
        return fits

    def _sums(
        self,
        attempt: Attempt,
        number: int,
        fits: Mapping[int, SummedFit],
        members: Mapping[int, int],
    ) -> dict[int, Whole]:
        """Return each model's sums over all of its sites, of those that have all."""
        sizes = {model: self.model.size(fit.sent) for model, fit in fits.items()}
        steps = {model: fit.sent for model, fit in fits.items()}
        # A number of its own for each exchange: to a site a sum is of a round and an attempt.
        own = Attempt(
            attempt.round, (attempt.attempt - 1) * _MOST_EXCHANGES + number, attempt.federation
        )
        if self._settings.secagg:
            found = sums_of_steps(own, self._settings, steps, members, sizes)
        else:
            found = self._in_the_clear(own, steps, members, sizes)
        attempt.took(own)
        missing = sorted(set(fits) - set(found))
        if missing:
            attempt.spoilt = f"model {missing[0]}: {own.first_reason()}"
            log.warning("a step of model %d is left: %s", missing[0], own.first_reason())
        return found

    def _in_the_clear(
        self,
        attempt: Attempt,
        steps: Mapping[int, Mapping[str, np.ndarray]],
        members: Mapping[int, int],
        sizes: Mapping[int, int],
    ) -> dict[int, Whole]:
        places = {model: place for place, model in enumerate(steps)}
        orders = [Order(attempt.round, attempt.attempt, model) for model in steps]
        contents = [
            messages.content(order, messages.encode_arrays(dict(steps[order.model])))
            for order in orders
        ]
        asked = {client: places[model] for client, model in members.items()}
        exchange = Exchange(attempt.federation.roster, ROW_SUMS, contents, orders, asked)
        models = [members[client] for client in asked]

        def inspect(reply: Reply, told: Asked) -> tuple[SumsReport, dict[str, np.ndarray]]:
            sums = reply.arrays.get(SUMS)
            size = sizes[told.order.model]
            if sums is None or len(reply.arrays) != 1 or sums.dtype != np.int64:
                raise MessageError("holds no sums")
            if sums.shape != (size,) or np.abs(sums).max(initial=0) >= LARGEST:
                raise MessageError(f"holds sums {sums.shape} of a step of {size}, or beyond 2^53")
            return reply.of(SumsReport), dict(reply.arrays)

        answers = attempt.ask(exchange, inspect, phase="train", models=models)
        found: dict[int, Whole] = {}
        for model in steps:
            own = [answer for answer in answers if members[answer.client] == model]
            if own and all(answer.value is not None for answer in own):
                values = [answer.value[1][SUMS] for answer in own if answer.value is not None]
                found[model] = np.sum(values, axis=0, dtype=np.int64)
        return found

    # What the models say -------------------------------------------------------------------------

    def store(self) -> None:
        """Write what the models say of the columns into the run's folder."""
        made, rows = self._made(), []
        columns = self._columns(made)
        for number, fit in self.fits.items():
            line = FittedModel(
                model=number,
                sites=self.members[number],
                exchanges=int(fit.sent["step"]),
                rows=int(fit.kept["rows"]) if "rows" in fit.kept else None,
                deviance=float(fit.kept["deviance"]) if "deviance" in fit.kept else None,
            )
            if isinstance(self.model, Glm) and "information" in fit.kept:
                table = self._coefficients(self.model, fit, columns, made)
                self._folder.write(f"models/coefficients-{number}.csv", to_csv(table))
                lines = tuple(CoefficientLine(**vars(each)) for each in table)
                line = replace(line, coefficients=lines)
            if isinstance(self.model, Trees):
                shares = self.model.importance(fit)
                order = np.argsort(-shares, kind="stable")
                line = replace(
                    line, importance={columns[i]: float(shares[i]) for i in order if shares[i] > 0}
                )
            rows.append(line)
        units = "own" if made is not None and made.scale else "scaled"
        self._folder.store(
            FittedFile(learner=self._settings.model, units=units, models=tuple(rows))
        )

    def _made(self) -> Preprocessing | None:
        """Return how the sites' rows were prepared, as far as the server knows."""
        path = self._folder.path / PREPROCESSING
        return Preprocessing.parse(path.read_bytes(), source=str(path)) if path.exists() else None

    def _columns(self, made: Preprocessing | None) -> list[str]:
        number = int(np.prod(self._site.input_shape))
        if made is not None and len(made.columns) == number:
            return [*made.columns]
        return [f"column {place}" for place in range(1, number + 1)]

    def _coefficients(
        self, model: Glm, fit: SummedFit, columns: Sequence[str], made: Preprocessing | None
    ) -> list[Coefficient]:
        outputs = [""]
        if model.family == "multinomial":
            known = made.classes if made is not None else ()
            names = known or [str(place) for place in range(model.outputs + 1)]
            outputs = [*names[1:]]
        unit, middle = 1.0, 0.0
        if made is not None and made.limits and model.family == "gaussian":
            measure = Measure(made.limits)
            unit, middle = measure.unit, measure.middle
        known_scale = made is not None and len(made.scale) == len(columns)
        return coefficient_table(
            model,
            fit,
            columns,
            outputs,
            scale=np.array(made.scale) if made is not None and known_scale else None,
            mean=np.array(made.mean) if made is not None and known_scale else None,
            unit=unit,
            middle=middle,
        )

    # A checkpoint --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the fits as a checkpoint keeps them."""
        return {
            str(model): {
                "sent": dict(fit.sent),
                "kept": dict(fit.kept),
                "finished": fit.finished,
                "members": list(self.members[model]),
            }
            for model, fit in self.fits.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self.fits = {
            int(model): SummedFit(own["sent"], own["kept"], True, own["finished"])
            for model, own in state.items()
        }
        self.members = {int(model): tuple(own["members"]) for model, own in state.items()}
