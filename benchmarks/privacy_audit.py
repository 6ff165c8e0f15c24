"""Privacy audit: can two worlds that differ in a unit be told apart better than epsilon allows?

    python -m benchmarks.privacy_audit

Each of the mechanisms that a site's book counts is drawn in two worlds that differ in its unit as
far as they can, and the worlds are told apart by what separates them best, the difference of the
expected answers. From the errors of 60 thresholds follows an epsilon that the mechanism does not
keep below (Jagielski, Ullman, Oprea, NeurIPS 2020), with a bound on the errors that holds in 999 of
1000 audits. A finding above what is claimed would be a fault.
"""

import argparse
import math
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from common.privacy.book import REPLACE_ROW, Entry, PrivacyBook
from common.privacy.closed_form import zcdp_epsilon
from common.privacy.labels import DiscreteGaussianCounts, LabelMechanism, RandomisedLabels
from common.privacy.noise import Entropy
from common.privacy.statistics import release_moments
from common.privacy.updates import UpdateNoise, noisy_model

FloatArray = NDArray[np.float64]

DELTA = 1e-5
_ERROR = 0.0005
_LEVELS = np.linspace(0.01, 0.99, 60)


class Audited(NamedTuple):
    """A mechanism: its words, what it claims at :data:`DELTA`, and its draws in either world."""

    words: str
    claimed: float
    draws: Callable[[int, int], FloatArray]
    """(world 0 or 1, how many) -> (n,) larger in world 1."""


def found(one: FloatArray, other: FloatArray) -> float:
    """Return the largest epsilon that draws of two worlds refute, at :data:`DELTA`.

    >>> same = np.arange(2000.0)
    >>> found(same, same), found(same, same + 10_000) > 5
    (0.0, True)
    """
    best = 0.0
    for level in np.quantile(other, _LEVELS):
        hits, alarms, draws = int((other > level).sum()), int((one > level).sum()), len(one)
        least = float(beta.ppf(_ERROR, hits, draws - hits + 1)) if hits else 0.0
        most = float(beta.ppf(1 - _ERROR, alarms + 1, draws - alarms)) if alarms < draws else 1.0
        if least > DELTA:
            best = max(best, math.log((least - DELTA) / most))
    return best


def _labels(mechanism: LabelMechanism, world: int, draws: int, entropy: Entropy) -> FloatArray:
    """Return how many more rows the second class is told to have: the row changed its label."""
    counts = np.array([1 - world, world], dtype=np.int64)
    told = np.array([mechanism.release(counts, entropy) for _ in range(draws)])
    return np.asarray(told[:, 1] - told[:, 0])


def _updates(
    planned: UpdateNoise, rounds: int, world: int, draws: int, entropy: Entropy
) -> FloatArray:
    """Return the sum of a run's noisy updates: all rows make the model go the other way."""
    sent = {"w": np.zeros(draws, np.float64)}
    change = {"w": np.full(draws, planned.clip if world else -planned.clip)}
    left = [noisy_model(sent, change, planned.sigma, entropy)["w"] for _ in range(rounds)]
    return np.sum(left, axis=0)


def _moments(rho: float, world: int, draws: int, entropy: Entropy) -> FloatArray:
    """Return noisy moments along their difference: of 20 rows of a class one is another."""
    rows = np.zeros((20, 5))
    worlds = []
    for last in ((1.0, 0.0), (-0.5, math.sqrt(0.75))):  # farthest: x'y = -1/2
        rows[-1, :2] = last
        worlds.append(rows.copy())
    exact = [np.concatenate([w.mean(axis=0), (w.T @ w / len(w)).ravel()]) for w in worlds]
    told = []
    for _ in range(draws):
        noisy = release_moments(worlds[world], rho, entropy).moments
        told.append(np.concatenate([noisy.mean, noisy.second.ravel()]))
    return np.asarray(np.array(told) @ (exact[1] - exact[0]))


def audited(entropy: Entropy = os.urandom) -> Iterator[Audited]:
    """Yield what is audited, drawn from the system's entropy or from another source."""
    for epsilon in (0.5, 1.0, 4.0):
        counts = DiscreteGaussianCounts(epsilon, DELTA)
        yield Audited(
            f"label-privacy=gaussian epsilon={epsilon:g}",
            epsilon,
            lambda world, draws, counts=counts: _labels(counts, world, draws, entropy),
        )
    answers = RandomisedLabels(1.0, 2)
    yield Audited(
        "label-privacy=k-rr epsilon=1",
        1.0,
        lambda world, draws: _labels(answers, world, draws, entropy),
    )
    asked = [DiscreteGaussianCounts(epsilon, DELTA) for epsilon in (1.0, 1.001, 1.002)]
    book = PrivacyBook(tuple(Entry(each.event, REPLACE_ROW, "label histogram") for each in asked))
    yield Audited(
        "label-privacy=gaussian, epsilon=1, 1.001 and 1.002",
        book.spent_on("label histogram", DELTA),
        lambda world, draws: np.sum(
            [_labels(each, world, draws, entropy) for each in asked], axis=0
        ),
    )
    for epsilon in (1.0, 8.0):
        planned = UpdateNoise(1.0, 6, epsilon, DELTA)
        yield Audited(
            f"update-privacy=local-dp update-epsilon={epsilon:g}, 5 rounds",
            planned.spent(5),
            lambda world, draws, planned=planned: _updates(planned, 5, world, draws, entropy),
        )
    for rho in (0.1, 1.0):
        yield Audited(
            f"statistics-privacy=zcdp rho={rho:g}",
            zcdp_epsilon(rho, DELTA),
            lambda world, draws, rho=rho: _moments(rho, world, draws, entropy),
        )


def main() -> None:
    """Print a line for each mechanism; exit code 1 if one tells more than it claims."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=10_000, help="in each world")
    draws = parser.parse_args().draws
    print("| mechanism | epsilon claimed | epsilon refuted |\n|---|---:|---:|")
    broken = False
    for each in audited():
        least = found(each.draws(0, draws), each.draws(1, draws))
        broken |= least > each.claimed
        print(f"| `{each.words}` | {each.claimed:.3g} | {least:.3g} |", flush=True)
    raise SystemExit(broken)


if __name__ == "__main__":
    main()
