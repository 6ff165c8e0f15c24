"""What metering costs: the same run with ``energy=codecarbon`` and with ``energy=off``, in turns.

    python benchmarks/metering.py --pairs 10
    python benchmarks/metering.py --pairs 5 dataset=fashion-mnist data-dir=DATA num-clients=100 \
        clients-per-round=10 strategy=random model=pereira-mlp num-server-rounds=10

Runs happen in this process (workers=1). Processor time is compared, as wall time is worth nothing
on a machine with other load. Starting CodeCarbon happens once per run and is told apart: it is a
fixed number of seconds, the rest grows with the rounds.
"""

import argparse
import contextlib
import logging
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from common import config, power
from common.config import Settings
from deploy.simulation import simulate
from server_app import report


@dataclass
class Apart:
    """Seconds that calls of a function took."""

    cpu: float = 0.0
    wall: float = 0.0


@contextlib.contextmanager
def clocked(module: Any, name: str) -> Iterator[Apart]:
    """Clock the calls of a module's function inside the block."""
    apart, function = Apart(), getattr(module, name)

    def call(*arguments: Any) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        result = function(*arguments)
        apart.cpu += time.process_time() - cpu
        apart.wall += time.perf_counter() - wall
        return result

    setattr(module, name, call)
    try:
        yield apart
    finally:
        setattr(module, name, function)


def run(settings: Settings, energy: str) -> tuple[float, Apart]:
    """Return a run's processor seconds without CodeCarbon's start and the report, and that start.

    The report of a metered run has a picture more, which is no cost of metering.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        clocked(power, "open_source") as start,
        clocked(report, "write_report") as drawing,
    ):
        began = time.process_time()
        simulate(settings.replace(energy=energy, workers=1, output_dir=folder))
        return time.process_time() - began - start.cpu - drawing.cpu, start


def main() -> None:
    """Print the overhead of each pair and its median."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("words", nargs="*", help="settings, as for coterie simulate")
    arguments = parser.parse_args()
    settings = config.load(None, arguments.words)
    logging.getLogger("coterie").setLevel(logging.ERROR)
    _, first = run(settings, "codecarbon")  # also loads what every later run finds loaded
    print(f"starting CodeCarbon: {first.wall:.2f} s, {first.cpu:.2f} s of processor time")
    overheads = []
    for pair in range(arguments.pairs):
        # Whoever comes second finds the caches warm, so they take turns.
        order = ("off", "codecarbon") if pair % 2 else ("codecarbon", "off")
        seconds = {energy: run(settings, energy)[0] for energy in order}
        overheads.append(100 * (seconds["codecarbon"] / seconds["off"] - 1))
        print(
            f"{seconds['off']:.2f} s, metered {seconds['codecarbon']:.2f} s: {overheads[-1]:+.1f} %"
        )
    low, middle, high = np.percentile(overheads, [25, 50, 75])
    print(f"overhead: median {middle:+.1f} %, quartiles {low:+.1f} and {high:+.1f} %")


if __name__ == "__main__":
    main()
