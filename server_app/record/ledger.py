"""What a round cost and brought: one line per round, one per site asked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common import power
from common.config import Settings
from common.messages import EvaluateReport, PersonalReport
from common.power import JOULES_PER_KWH
from server_app.metering.bill import Bill, Item
from server_app.record.energy_figures import (
    COUNTED,
    Curve,
    costs_by_site,
    joules_by_phase,
    sources_by_phase,
    times_trained,
)
from server_app.record.fairness import spread, worst_tenth
from server_app.record.run_folder import RunFolder
from server_app.rounds.attempt import Attempt, Recorded
from server_app.rounds.exchange import NO_REPLY, OK
from server_app.rounds.roster import Roster


@dataclass(frozen=True)
class Score:
    """Accuracy in [0, 1] and loss in nats, over the held-out rows of some sites."""

    accuracy: float
    loss: float
    num_sites: int
    num_examples: int

    @classmethod
    def of(cls, reports: Sequence[EvaluateReport]) -> "Score":
        """Return the mean over all rows, each site under the model it got."""
        rows = np.array([report.num_examples for report in reports], dtype=np.float64)
        shares = rows / rows.sum()
        accuracy = float(shares @ [report.accuracy for report in reports])
        loss = float(shares @ [report.loss for report in reports])
        return cls(accuracy, loss, len(reports), int(rows.sum()))


class Ledger:
    """Writes the lines of a run as its rounds end, and its results at the end."""

    def __init__(self, folder: RunFolder, roster: Roster) -> None:
        self._folder = folder
        self._roster = roster
        # Of the lines before this ledger's: a run may be continued by another process.
        self._uplinks = sum(map(_uplinks, folder.read_lines("rounds.jsonl")))

    def record(self, attempt: Attempt, bill: Bill) -> dict[str, Any]:
        """Append an attempt's lines to disk and return the round's own line.

        ``bill`` is of all messages since the attempt before, also of those that are no answers of
        this one.
        """
        clients = self._client_lines(attempt, bill)
        self._folder.append("clients.jsonl", clients)
        line = self._round_line(attempt)
        line |= {key: sum(client[key] for client in clients) for key in ("bytes_down", "bytes_up")}
        line |= bill.line()
        self._uplinks += _uplinks(line)
        line["uplink_share"] = self._uplinks / (attempt.round * len(self._roster))
        self._folder.append("rounds.jsonl", [line])
        return line

    def target_was_held(self, settings: Settings) -> bool:
        """Whether the rounds so far held the target accuracy for the window."""
        curve = Curve.of(self._folder.read_lines("rounds.jsonl"))
        return curve.reached(settings.target_accuracy, settings.sustained_rounds) is not None

    def results(self, seconds: float, settings: Settings) -> dict[str, Any]:
        """Return the final figures, from the lines alone; null: not known."""
        attempts = self._folder.read_lines("rounds.jsonl")
        lines = [line for line in attempts if line["models"]]
        best = max(lines, key=lambda line: (line["accuracy"], -line["round"]))
        return {
            "accuracy": lines[-1]["accuracy"],
            "loss": lines[-1]["loss"],
            **{key: lines[-1][key] for key in (*_FAIRNESS, *_SHARED) if key in lines[-1]},
            "best_accuracy": best["accuracy"],
            "best_round": best["round"],
            "rounds": lines[-1]["round"],
            "mean_clients_per_round": float(np.mean([len(line["trained"]) for line in lines])),
            "bytes_down": sum(line["bytes_down"] for line in attempts),
            "bytes_up": sum(line["bytes_up"] for line in attempts),
            "uplink_share": lines[-1]["uplink_share"],
            "seconds": seconds,
            "selected": times_trained(lines, self._roster.names),
            **_energy(attempts, settings),
            "sites": costs_by_site(self._folder.each_line("clients.jsonl")),
            **_sustained(Curve.of(attempts), settings),
            "models": lines[-1]["models"],
        }

    def _round_line(self, attempt: Attempt) -> dict[str, Any]:
        answers = [one.answer for one in attempt.answers]
        scores = _by_model(attempt.evaluated)
        overall = Score.of(attempt.evaluated) if scores else None
        return {
            "round": attempt.round,
            "attempt": attempt.attempt,
            "accuracy": overall.accuracy if overall else None,
            "loss": overall.loss if overall else None,
            **_fairness(attempt.evaluated),
            "train_loss": _train_loss(attempt),
            **_common_model(attempt),
            "models": [{"model": model, **vars(score)} for model, score in scores.items()],
            "trained": [
                *(self._roster.names[answer.client] for answer, _, _ in attempt.trained),
                *sorted(site for one in attempt.sums for site in one.sites),
            ],
            "rejected": self._rejected(attempt),
            "missing": sorted(
                {self._roster.names[a.client] for a in answers if a.verdict == NO_REPLY}
            ),
            "seconds": {name: round(value, 6) for name, value in attempt.seconds.items()},
            "drift": attempt.drift,
            **({"secure_sums": list(map(vars, attempt.sums))} if attempt.sums else {}),
        }

    def _rejected(self, attempt: Attempt) -> list[dict[str, str]]:
        return [
            {"site": self._roster.names[a.client], "phase": one.phase, "reason": a.verdict}
            for one in attempt.answers
            if (a := one.answer).verdict not in (OK, NO_REPLY)
        ]

    def _client_lines(self, attempt: Attempt, bill: Bill) -> list[dict[str, Any]]:
        """Return a line per message of the bill: of the attempt's answers after all others."""
        answers = attempt.answers
        asked = {one.message for one in answers}
        others = [item for place, item in enumerate(bill.items) if place not in asked]
        sites = list(dict.fromkeys(item.site for item in bill.items))
        others.sort(key=lambda item: sites.index(item.site))  # site by site
        lines = [_other_line(attempt, item) for item in others]
        return lines + [self._client_line(attempt, one, bill.items[one.message]) for one in answers]

    def _client_line(self, attempt: Attempt, one: Recorded, item: Item) -> dict[str, Any]:
        answer = one.answer
        # A training's value is its report and its arrays.
        report = answer.value[0] if isinstance(answer.value, tuple) else answer.value
        told = ("num_examples", "loss", "accuracy", *_SHARED, "seconds")
        divergence = attempt.divergence.get(answer.client) if one.phase == "train" else None
        return {
            "round": attempt.round,
            "attempt": attempt.attempt,
            "phase": one.phase,
            "site": self._roster.names[answer.client],
            "model": answer.model,
            **{key: _or_none(getattr(report, key)) for key in told if hasattr(report, key)},
            **({} if divergence is None else {"weight_divergence": divergence}),
            "bytes_down": item.bytes_down,
            "bytes_up": item.bytes_up,
            "verdict": answer.verdict,
            **item.line(),
        }


def _other_line(attempt: Attempt, item: Item) -> dict[str, Any]:
    """Return the line of a message that is not one of the round's own kinds."""
    return {
        "round": attempt.round,
        "attempt": attempt.attempt,
        "phase": item.name,
        "site": item.site,
        "bytes_down": item.bytes_down,
        "bytes_up": item.bytes_up,
        **item.line(),
    }


def _energy(attempts: Sequence[Mapping[str, Any]], settings: Settings) -> dict[str, Any]:
    """Return the joules of all attempts, and the greenhouse gases of those the papers count."""
    by_phase = joules_by_phase(attempts)
    total = sum(by_phase[phase] for phase in COUNTED)
    kilograms = math.nan
    if settings.energy_country and math.isfinite(total):
        kilograms = total / JOULES_PER_KWH * power.kg_co2e_per_kwh(settings.energy_country)
    return {
        "joules": {phase: _or_none(joules) for phase, joules in by_phase.items()},
        "joules_source": sources_by_phase(attempts),
        "joules_total": _or_none(total),
        "kg_co2e": _or_none(kilograms),
    }


def progress(line: Mapping[str, Any], rounds: int, attempts: int) -> str:
    """Return a round's line in words for people who watch."""
    position = f"round {line['round']:>3}/{rounds}"
    if line["accuracy"] is None:
        return f"{position}  failed, attempt {line['attempt']} of {attempts}"
    return (
        f"{position}  accuracy {line['accuracy']:.4f}  loss {line['loss']:.4f}  "
        f"{len(line['trained'])} trained  {sum(line['seconds'].values()):.2f} s"
    )


def _sustained(curve: Curve, settings: Settings) -> dict[str, Any]:
    """Return what accuracy was held, and when and for how many joules the target was."""
    window, target = settings.sustained_rounds, settings.target_accuracy
    reached = curve.reached(target, window) if target else None
    return {
        "sustained_rounds": window,
        "best_sustained_accuracy": curve.best_sustained(window),
        "target_accuracy": target or None,
        "target_first_round": reached.first if reached else None,
        "target_round": reached.last if reached else None,
        "target_joules": _or_none(reached.joules if reached else math.nan),
    }


def _or_none(value: float) -> float | None:
    """Return a figure as JSON holds it: nothing where it is not known."""
    return None if math.isnan(value) else value


_FAIRNESS = ("accuracy_std", "accuracy_worst_decile")


def _fairness(reports: Sequence[EvaluateReport]) -> dict[str, float | None]:
    """Return how the sites' accuracies spread, each site counting once."""
    if not reports:
        return dict.fromkeys(_FAIRNESS)
    accuracies = np.array([report.accuracy for report in reports])
    return dict(zip(_FAIRNESS, (spread(accuracies), worst_tenth(accuracies)), strict=True))


_SHARED = ("shared_loss", "shared_accuracy")


def _common_model(attempt: Attempt) -> dict[str, float]:
    """Return how far the updates lie from the model, each site counting once.

    Where sites have models of their own, also how the common one does over all held-out rows.
    """
    figures: dict[str, float] = {}
    if attempt.divergence:
        figures["weight_divergence"] = float(np.mean(list(attempt.divergence.values())))
    reports = [report for report in attempt.evaluated if isinstance(report, PersonalReport)]
    if reports:
        rows = np.array([report.num_examples for report in reports], dtype=np.float64)
        shares = rows / rows.sum()
        figures |= {key: float(shares @ [getattr(r, key) for r in reports]) for key in _SHARED}
    return figures


def _uplinks(line: dict[str, Any]) -> int:
    """Return how many updates, or masked ones, reached the server, whether they counted or not."""
    sums = line.get("secure_sums", ())
    phase = "mask" if sums else "train"
    refused = sum(entry["phase"] == phase for entry in line["rejected"])
    came = sum(one["masked"] for one in sums) if sums else len(line["trained"])
    return int(refused + came)


def _by_model(reports: Sequence[EvaluateReport]) -> dict[int, Score]:
    models = sorted({report.model for report in reports})
    return {model: Score.of([r for r in reports if r.model == model]) for model in models}


def _train_loss(attempt: Attempt) -> float | None:
    told = [(report.loss, report.num_examples) for _, report, _ in attempt.trained]
    told += [(one.loss, one.weight) for one in attempt.sums if one.loss is not None and one.weight]
    told = [(loss, weight) for loss, weight in told if not math.isnan(loss)]
    if not told:
        return None  # nobody trained, or all keep their loss to themselves
    losses, weights = zip(*told, strict=True)
    return float(np.average(losses, weights=weights))
