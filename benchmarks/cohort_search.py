"""Cohort search: how long a balanced cohort takes to choose, and how balanced cohorts are.

    OMP_NUM_THREADS=1 python benchmarks/cohort_search.py

Rounds of selection alone, with everybody there: nothing is trained. Labels are dealt by a Dirichlet
distribution for every class, as ``split=dirichlet`` does it.
"""

import argparse
import shlex
import sys
import time

import numpy as np
from numpy.typing import NDArray

from server_app.selection.balanced import balanced_cohort, imbalance, label_weights

_CLASSES, _ROWS, _LEAST = 10, 60_000, 10
_PENALTY, _SPREAD = 0.01, 10  # the settings' defaults


def federation(sites: int, alpha: float, seed: int) -> NDArray[np.int64]:
    """Return label counts (sites, classes); nobody has fewer than ten rows."""
    rng = np.random.default_rng(seed)
    columns = [
        rng.multinomial(_ROWS // _CLASSES, rng.dirichlet(np.full(sites, alpha)))
        for _ in range(_CLASSES)
    ]
    counts = np.column_stack(columns)
    short = np.maximum(_LEAST - counts.sum(axis=1), 0)
    counts[np.arange(sites), rng.integers(_CLASSES, size=sites)] += short
    return counts


def row(sites: int, m: int, alpha: float, rounds: int) -> str:
    """Return a line of the table."""
    counts = federation(sites, alpha, seed=0)
    gram, sizes = (counts @ counts.T).astype(float), counts.sum(axis=1)
    there, turns = np.ones(sites, dtype=bool), np.zeros(sites, dtype=np.int64)
    times, balanced, drawn, rows = [], [], [], []
    for number in range(rounds):
        rng = np.random.default_rng(number)
        began = time.process_time()
        cohort = balanced_cohort(
            gram, sizes, turns, there, m, rng, penalty=_PENALTY, spread=_SPREAD
        )
        label_weights(gram / np.outer(sizes, sizes), sizes, cohort)
        times.append(time.process_time() - began)
        turns[cohort] += 1
        balanced.append(imbalance(gram, sizes, cohort))
        drawn.append(imbalance(gram, sizes, rng.choice(sites, m, replace=False)))
        rows.append(sizes[cohort].mean() / sizes.mean())
    return (
        f"| {sites} | {m} | {alpha:g} | {rounds} | {np.mean(times):.3f} | {max(times):.3f} "
        f"| {np.mean(drawn):.4f} | {np.mean(balanced):.6f} | {np.ptp(turns)} "
        f"| {np.mean(turns == 0):.0%} | {100 * np.mean(rows):.0f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=150)
    rounds = parser.parse_args().rounds
    print(f"`{shlex.join(['python', 'benchmarks/cohort_search.py', *sys.argv[1:]])}`\n")
    print(
        "| sites | M | alpha | rounds | CPU s a round | at most | D of random ones | D | turns "
        "apart | never trained | rows, % of average |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for sites, m, alpha in (
        (100, 5, 0.05),
        (100, 10, 0.05),
        (100, 10, 0.1),
        (100, 20, 0.05),
        (1000, 10, 0.05),
        (1000, 50, 0.05),
        (1000, 250, 0.05),
    ):
        print(row(sites, m, alpha, rounds), flush=True)


if __name__ == "__main__":
    main()
