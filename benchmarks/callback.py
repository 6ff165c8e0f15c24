"""Callback: what ``on_round`` costs a run, in processor time, pairs of runs with and without it.

python -m benchmarks.callback --pairs 6
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import coterie

RUN: Mapping[str, Any] = {
    "dataset": "digits",
    "num_clients": 20,
    "num_server_rounds": 30,
    "strategy": "fedavg",
    "workers": 1,
    "report": False,
    "quiet": True,
}


def seconds(on_round: Callable[..., object] | None) -> float:
    """Return the seconds of processor that a run of digits takes."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        coterie.simulate(**RUN, output_dir=folder, on_round=on_round)
        return time.process_time() - began


def main() -> None:
    """Print the means, and the paired difference with its standard error."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=6)
    pairs = parser.parse_args().pairs
    rounds: list[object] = []
    seconds(None)  # what only a first run does
    found = [(seconds(None), seconds(lambda line: rounds.append(line))) for _ in range(pairs)]
    without, called = zip(*found, strict=True)
    differences = [after - before for before, after in found]
    error = statistics.stdev(differences) / math.sqrt(pairs)
    print(f"without {statistics.mean(without):.3f} s, with {statistics.mean(called):.3f} s")
    print(f"difference {statistics.mean(differences):+.3f} s, standard error {error:.3f}")
    print(f"{len(rounds)} calls in {pairs} runs")


if __name__ == "__main__":
    main()
