"""Playing of a pilot: rounds on all folds at once, and looks at what came of them.

All candidates and folds travel in one exchange per round, so that a pilot is as many exchanges as
it has rounds, and one more for each look. Ditto's common model is FedAvg's, bit for bit, and
training alone sends nothing: neither has an exchange of its own.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from common import messages
from common.config import Settings
from common.errors import MessageError, RoundError
from common.messages import Order, Parameters, Template
from common.pilot.messages import PILOT_LOOK, PILOT_TRAIN, PilotLook, PilotOrder, PilotTrained
from common.pilot.settings import PilotSettings
from server_app.averaging import average
from server_app.pilot.answer import PilotAnswer
from server_app.pilot.candidates import Candidates, SharedModel
from server_app.record import checkpoint
from server_app.record.pilot_format import PilotRecord, PilotSite
from server_app.record.run_folder import RunFolder
from server_app.rounds.delegating_grid import HoldsClients
from server_app.rounds.exchange import Exchange
from server_app.rounds.guard import Asked, refuse_error
from server_app.rounds.roster import Roster
from server_app.transport.verdicts import Verdict

__all__ = ["FOLDER", "Pilot"]

log = logging.getLogger("coterie")

T = TypeVar("T")

FOLDER = "pilot"
"""Of a pilot's checkpoints, in the run's."""

_ATTEMPTS = 2
_STILL_MOVES = 0.01
"""Rise of a shared candidate's share of right rows over half the rounds between two looks, from
which its curve is not over."""

Trained = tuple[PilotTrained, list[dict[str, np.ndarray]]]


@dataclass
class _Progress:
    """What a pilot has played."""

    models: dict[SharedModel, list[Parameters]]
    """Of each fold."""
    done: int = 0
    seconds: float = 0.0
    curve: list[list[float]] = field(default_factory=list)
    """After each round, the share of all rows held out that each shared candidate gets right."""
    looks: list[int] = field(default_factory=list)


class Pilot:
    """Plays a pilot over a grid.

    Args:
        settings: of the run.
        roster: everybody.
        candidates: to be played.
        first: the model that all start from.
        folder: of the run, where checkpoints are written.
        grid: the connection to the sites.
        timeout: seconds to wait for each exchange.
    """

    def __init__(
        self,
        settings: Settings,
        roster: Roster,
        candidates: Candidates,
        first: Parameters,
        folder: RunFolder,
        grid: Grid,
        timeout: float,
    ) -> None:
        self._own = settings.of(PilotSettings)
        self._full = max(
            int(Settings.model_fields["num_server_rounds"].default), self._own.pilot_rounds
        )
        self._roster = roster
        self._candidates = candidates
        self._folder = folder
        self._grid = grid
        self._timeout = timeout
        self._template = Template.of(first)
        self._shared = [candidates.shared_by(client) for client in range(len(roster))]
        models = {model for shared in self._shared for model in shared}
        self._played = _Progress({model: [first] * self._own.pilot_folds for model in models})

    def play(self) -> PilotRecord:
        """Play what the settings ask for and return what it says.

        Raises:
            RoundError: no site gave a usable answer, twice.
        """
        self._resume()
        self._say_cost()
        began = time.monotonic() - self._played.seconds
        answer, skipped = PilotAnswer(self._roster.names, self._candidates, {}), list[str]()
        step = self._own.pilot_rounds
        aim = min(max(1, -(-self._played.done // step)) * step, self._full)
        while True:
            while self._played.done < aim and not skipped:
                if self._is_late(began):
                    skipped = self._left_out(aim)
                    break
                self._play_round(self._played.done + 1)
                self._played.seconds = time.monotonic() - began
                self._save()
                self._say_progress(aim)
            answer = self._look()
            self._played.looks.append(self._played.done)
            why = self._plays_on(answer.sites())
            if not why or skipped:
                break
            log.info("pilot: %s, so it plays on", why)
            aim = min(self._played.done + step, self._full)
        self._played.seconds = time.monotonic() - began
        return self._record(answer, skipped)

    # One round, one look -----------------------------------------------------------------------

    def _play_round(self, number: int) -> None:
        told = self._ask(PILOT_TRAIN, number, self._inspect_training)
        for model in self._played.models:
            self._played.models[model] = self._averaged(model, told)
        rows = sum(report.held_out for report, _ in told.values())
        names = [name for name in self._candidates.names if name not in ("local", "ditto")]
        right = dict.fromkeys(names, 0.0)
        for client, (report, _) in told.items():
            # a candidate that a site does not have is training alone there, and moves nothing
            for (name, _), value in zip(self._shared[client], report.values, strict=True):
                right[name] += value * report.held_out
        self._played.curve.append([value / max(rows, 1) for value in right.values()])
        self._played.done = number

    def _averaged(self, model: SharedModel, told: Mapping[int, Trained]) -> list[Parameters]:
        """Return each fold's average over the sites that share a model, by their rows."""
        folds = self._own.pilot_folds
        averages = []
        for k in range(folds):
            fitted, weights = [], []
            for client, (report, models) in told.items():
                if model in self._shared[client]:
                    fitted.append(models[self._shared[client].index(model) * folds + k])
                    weights.append(report.examples[k])
            before = self._played.models[model][k]
            averages.append(average(fitted, np.array(weights)) if fitted else before)
        return averages

    def _look(self) -> PilotAnswer:
        looks = self._ask(PILOT_LOOK, self._played.done, self._inspect_look)
        return PilotAnswer(self._roster.names, self._candidates, looks)

    def _ask(self, kind: str, number: int, inspect: Callable[[Message, Asked], T]) -> dict[int, T]:
        """Return what each site answers; those without a usable answer are named and missing."""
        for attempt in range(1, _ATTEMPTS + 1):
            exchange = self._exchange(kind, number, attempt)
            replies = self._grid.send_and_receive(exchange.outgoing(), timeout=self._timeout)
            answers = exchange.answers(replies, inspect)
            for each in answers:
                if each.value is None:
                    name = self._roster.names[each.client]
                    log.warning("pilot, round %d: nothing from %s: %s", number, name, each.verdict)
            found = {each.client: each.value for each in answers if each.value is not None}
            if found:
                return found
        raise RoundError(
            f"round {number} of the pilot: no usable answer in {_ATTEMPTS} attempts; "
            f"{self._roster.names[answers[0].client]}: {answers[0].verdict}"
        )

    def _exchange(self, kind: str, number: int, attempt: int) -> Exchange:
        """Return the exchange that sends each site the models that it shares."""
        kinds = list(dict.fromkeys(self._shared))
        contents = [
            messages.content(
                PilotOrder(number, self._own.pilot_folds, [name for name, _ in shared], self._full),
                messages.encode_arrays(
                    messages.together(
                        [fold for model in shared for fold in self._played.models[model]]
                    )
                ),
            )
            for shared in kinds
        ]
        orders = [Order(number, attempt, place) for place in range(len(kinds))]
        sent = {client: kinds.index(shared) for client, shared in enumerate(self._shared)}
        return Exchange(self._roster, kind, contents, orders, sent)

    def _inspect_training(self, reply: Message, asked: Asked) -> Trained:
        refuse_error(reply)
        report = PilotTrained.decode(reply.content)
        self._check(report, asked)
        shared, folds = self._shared_by(asked), self._own.pilot_folds
        rows = asked.site.num_examples
        if len(report.examples) != folds or not all(1 <= n <= rows for n in report.examples):
            raise MessageError(f"rows {report.examples} of {folds} folds, introduced with {rows}")
        if len(report.values) != len(shared) or not 0 <= report.held_out <= rows:
            raise MessageError(f"{len(report.values)} values on {report.held_out} rows")
        arrays = messages.decode_arrays(messages.arrays_of(reply.content))
        models = messages.apart(arrays, len(shared) * folds)
        for model in models:
            messages.check_arrays(model, self._template)
        return report, models

    def _inspect_look(self, reply: Message, asked: Asked) -> PilotLook:
        refuse_error(reply)
        report = PilotLook.decode(reply.content)
        self._check(report, asked)
        client = self._roster.names.index(asked.site.site)
        if tuple(report.candidates) != self._candidates.of_site(client):
            raise MessageError(f"judged {report.candidates}")
        if not 0 <= report.units <= report.held_out <= asked.site.num_examples:
            raise MessageError(f"{report.units} units of {report.held_out} rows")
        return report

    def _check(self, report: PilotTrained | PilotLook, asked: Asked) -> None:
        if report.site != asked.site.site:
            raise MessageError(f"signed {report.site!r}")
        if report.round != asked.order.round:
            raise MessageError(f"stale: of round {report.round}, asked for {asked.order.round}")

    def _shared_by(self, asked: Asked) -> tuple[SharedModel, ...]:
        return self._shared[self._roster.names.index(asked.site.site)]

    # How long ----------------------------------------------------------------------------------

    def _plays_on(self, sites: Sequence[PilotSite]) -> str:
        """Return why more rounds would say more; empty: they would not, or there are no more.

        A second look follows where the first left a site unclear. From then on, and wherever a
        first look was clear, only a curve that still rises is followed: few rounds of a shared
        model say too little of many.
        """
        done, step = self._played.done, self._own.pilot_rounds
        if done >= self._full:
            return ""
        unclear = sum(1 for site in sites if site.verdict == Verdict.UNCERTAIN and site.held_out)
        if done <= step and unclear:
            return f"for {unclear} of {len(sites)} sites it is not clear yet"
        curve = self._played.curve
        before, now = curve[max(done - 1 - max(step // 2, 1), 0)], curve[-1]
        rise = max(new - old for new, old in zip(now, before, strict=True))
        return f"a shared model rose by {100 * rise:.1f} points" if rise > _STILL_MOVES else ""

    def _is_late(self, began: float) -> bool:
        """Return whether the next round would end after the time that there is."""
        limit, done = 60 * self._own.pilot_minutes, self._played.done
        if not limit or not done:
            return False
        return time.monotonic() - began + self._seconds_a_round() > limit

    def _seconds_a_round(self) -> float:
        """Return what a round takes: the first one has the training of each site alone, too."""
        return self._played.seconds / self._effort(self._played.done)

    def _effort(self, rounds: int) -> float:
        """Return what rounds take, in rounds: by trainings of a fold at a site."""
        most = max(map(len, self._shared)) + 1  # Ditto's
        return rounds + self._full / most if rounds else 0.0

    def _left_out(self, aim: int) -> list[str]:
        done = self._played.done
        words = f"rounds {done + 1} to {aim}" if aim - done > 1 else f"round {aim}"
        return [f"{words}: more than {self._own.pilot_minutes:g} minutes (pilot-minutes)"]

    def _say_cost(self) -> None:
        own, most = self._own, max(map(len, self._shared))
        log.info(
            "pilot: %s on %d folds, %d rounds (up to %d while it is unclear), %d rounds alone; "
            "a site sends %d models a round",
            ", ".join(self._candidates.names),
            own.pilot_folds,
            own.pilot_rounds,
            self._full,
            self._full,
            most * own.pilot_folds,
        )

    def _say_progress(self, aim: int) -> None:
        left = (aim - self._played.done) * self._seconds_a_round()
        log.info("pilot: round %d of %d, about %.0f s left", self._played.done, aim, left)

    # What outlives a crash ---------------------------------------------------------------------

    def _save(self) -> None:
        played = self._played
        state = {
            "models": {
                f"{name}/{group}": {str(k): dict(model) for k, model in enumerate(folds)}
                for (name, group), folds in played.models.items()
            },
            "seconds": played.seconds,
            "curve": played.curve,
            "looks": played.looks,
            "clients": self._grid.client_states() if isinstance(self._grid, HoldsClients) else {},
        }
        (self._folder.path / FOLDER).mkdir(exist_ok=True)
        checkpoint.save(self._folder.path / FOLDER, played.done, state)

    def _resume(self) -> None:
        """Go on after the last round of a pilot that was interrupted, if there was one."""
        path = self._folder.path / FOLDER
        if not checkpoint.any_in(path):
            return
        done, state = checkpoint.latest(path)
        models: Mapping[str, Mapping[str, Any]] = state["models"]
        for name, group in self._played.models:
            folds = models[f"{name}/{group}"]
            self._played.models[name, group] = [folds[str(k)] for k in range(len(folds))]
        self._played.done = done
        self._played.seconds = float(state["seconds"])
        self._played.curve = [list(values) for values in state["curve"]]
        self._played.looks = list(state["looks"])
        if isinstance(self._grid, HoldsClients):
            self._grid.restore_clients(state["clients"])
        log.info("pilot: going on after round %d", done)

    def _record(self, answer: PilotAnswer, skipped: list[str]) -> PilotRecord:
        return PilotRecord(
            folds=self._own.pilot_folds,
            rounds=self._played.done,
            full_rounds=self._full,
            looks=tuple(self._played.looks),
            seconds=self._played.seconds,
            best=answer.best,
            skipped=tuple(skipped),
            candidates=answer.over_all(),
            sites=answer.sites(),
        )
