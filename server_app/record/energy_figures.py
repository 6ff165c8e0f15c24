"""What a run's lines say of joules, rounds and targets: ``rounds.jsonl`` in, figures out.

Sources:

- Famá: "Measuring Data Similarity for Efficient Federated Learning: A Feasibility Study" (Famá et
  al.): energy until an accuracy was held for 3 rounds.
- Pereira: "Energy-Efficient Federated Learning for AIoT using Clustering Methods" (Pereira et
  al.), sections IV and V: pre-processing, training and communication; an accuracy held for 20
  rounds; the best one within a budget of joules.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from server_app.metering.phases import COUNTED, PHASES
from server_app.record.accuracy_figures import rounds_to_sustain, sustained_accuracy

__all__ = [
    "COUNTED",
    "PHASES",
    "Curve",
    "Reached",
    "costs_by_site",
    "joules_by_phase",
    "sources_by_phase",
    "times_trained",
]

FloatArray = NDArray[np.float64]
Line = Mapping[str, Any]
"""A line of ``rounds.jsonl``: one attempt at a round."""


@dataclass(frozen=True)
class Reached:
    """The first window of rounds in which an accuracy was held."""

    first: int
    """Round with which the window begins."""
    last: int
    """Round with which it ends: what the papers call rounds to the target."""
    joules: float
    """Spent by all until the window's end; NaN where they were not metered."""


@dataclass(frozen=True)
class Curve:
    """Accuracy and cumulative energy of consecutive rounds."""

    rounds: NDArray[np.int64]
    """(T,) consecutive round numbers."""
    accuracy: FloatArray
    """(T,) in [0, 1]."""
    joules: FloatArray
    """(T,) spent from the start of the run to the round's end; NaN where not metered."""

    def __post_init__(self) -> None:
        """Refuse arrays that are not of the same rounds."""
        if not len(self.rounds) == len(self.accuracy) == len(self.joules):
            raise ValueError(
                f"{len(self.rounds)} rounds, {len(self.accuracy)} accuracies and "
                f"{len(self.joules)} energies: give one of each per round"
            )
        if np.any(np.diff(self.rounds) != 1):
            raise ValueError("rounds are missing: a curve needs consecutive ones")

    @classmethod
    def of(cls, lines: Iterable[Line], phases: Sequence[str] = COUNTED) -> Self:
        """Return the curve of a run's lines, in their order, over the joules of some phases.

        A round that was retried spent what all its attempts did; its accuracy is the last one's.
        """
        known = list(lines)
        accuracies = {line["round"]: line.get("accuracy") for line in known}
        rounds = sorted(number for number, value in accuracies.items() if value is not None)
        spent = dict.fromkeys(rounds, 0.0)
        for line in known:
            if line["round"] in spent:
                spent[line["round"]] += _spent(line, phases)
        return cls(
            np.array(rounds, dtype=np.int64),
            np.array([accuracies[number] for number in rounds], dtype=np.float64),
            np.cumsum([spent[number] for number in rounds]).astype(np.float64),
        )

    def reached(self, target: float, window: int) -> Reached | None:
        """Return the first ``window`` consecutive rounds never below ``target``; None if none."""
        last = rounds_to_sustain(self.accuracy, target, window)
        if last is None:
            return None
        first, end = int(self.rounds[last - window]), int(self.rounds[last - 1])
        return Reached(first, end, float(self.joules[last - 1]))

    def best_sustained(self, window: int, budget: float = math.inf) -> float | None:
        """Return the largest accuracy held for ``window`` rounds that end within ``budget`` joules.

        None where no window does. Without a budget, energy need not have been metered.
        """
        within = slice(None) if math.isinf(budget) else self.joules <= budget
        return sustained_accuracy(self.accuracy[within], window)


def joules_by_phase(lines: Iterable[Line]) -> dict[str, float]:
    """Return the joules of each phase over all lines; NaN for one that was not metered."""
    spent = [line.get("joules") or {} for line in lines]
    return {phase: sum(_number(entry, phase) for entry in spent) for phase in PHASES}


def sources_by_phase(lines: Iterable[Line]) -> dict[str, str | None]:
    """Return where each phase's joules come from over all lines; None where it was not metered."""
    told = [line.get("joules_source") or {} for line in lines]
    sources = {
        phase: sorted({source for entry in told for source in _words(entry.get(phase))})
        for phase in PHASES
    }
    return {phase: ", ".join(names) or None for phase, names in sources.items()}


def _words(text: str | None) -> list[str]:
    return text.split(", ") if text else []


def costs_by_site(lines: Iterable[Line]) -> dict[str, dict[str, float | None]]:
    """Return what each site cost over all lines of ``clients.jsonl``: joules, air time, bytes.

    ``joules`` is the site's machine alone, where they are known; None if they never are.
    """
    found: dict[str, dict[str, float | None]] = {}
    for line in lines:
        costs = found.setdefault(line["site"], dict.fromkeys(_COSTS))
        for key in _COSTS:
            value = line.get(key)
            if value is not None:
                costs[key] = (costs[key] or 0) + value
    return found


_COSTS = ("joules", "radio_joules", "radio_seconds", "bytes_down", "bytes_up")


def times_trained(lines: Iterable[Line], sites: Sequence[str]) -> dict[str, int]:
    """Return in how many of the rounds with a result each site's update counted."""
    times = dict.fromkeys(sites, 0)
    for line in lines:
        if line["accuracy"] is not None:
            for site in line["trained"]:
                times[site] = times.get(site, 0) + 1
    return times


def _spent(line: Line, phases: Sequence[str]) -> float:
    spent = line.get("joules") or {}
    return sum(_number(spent, phase) for phase in phases)


def _number(values: Mapping[str, Any], key: str) -> float:
    value = values.get(key)
    return math.nan if value is None else float(value)
