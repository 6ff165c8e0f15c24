r"""Null costs: processor seconds for the nulls of all pairs of many sites.

    python -m benchmarks.null_costs --sites 50 --classes 2 --rows 120

Made-up rectified representations of 64 columns. The classes of a site are a Dirichlet(1) draw where
there are more than two, else each has between two thirds and four thirds of its share.
"""

import argparse
import itertools
import time

import numpy as np

from server_app.transport.null_costs import Nulls
from server_app.transport.representations import Representations
from server_app.transport.variants import OtSettings

WIDTH = 64


def arguments() -> argparse.Namespace:
    """Return the command line's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--rows", type=int, default=120, help="of a site, about")
    return parser.parse_args()


def made_up(sites: int, classes: int, rows: int) -> list[Representations]:
    """Return the sites' representations, the same at every call."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, WIDTH))
    found = []
    for _ in range(sites):
        if classes > 2:
            counts = rng.multinomial(rows, rng.dirichlet(np.ones(classes)))
        else:
            share = rows / classes
            counts = rng.integers(round(share * 2 / 3), round(share * 4 / 3) + 1, size=classes)
        y = np.repeat(np.arange(classes), counts)
        h = np.maximum(centres[y] + rng.normal(size=(len(y), WIDTH)), 0.0)
        found.append(Representations(h, y))
    return found


def main() -> None:
    """Draw all nulls and print the time."""
    args = arguments()
    clients, settings = made_up(args.sites, args.classes, args.rows), OtSettings()
    nulls = Nulls(clients, settings, seed=0)
    began, pairs, highs = time.process_time(), 0, []
    for i, j in itertools.combinations(range(len(clients)), 2):
        held = [clients[place].class_counts for place in (i, j)]
        weights = {
            label: float(count * held[1][label])
            for label, count in held[0].items()
            if min(count, held[1].get(label, 0)) >= settings.min_rows
        }
        if weights:
            highs.append(nulls.of_pair(i, j, weights).high)
            pairs += 1
    seconds = time.process_time() - began
    print(f"{pairs} pairs, mean 95 % quantile {np.mean(highs):.4f}: {seconds:.1f} s of processor")


if __name__ == "__main__":
    main()
