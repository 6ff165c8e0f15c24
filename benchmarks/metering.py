"""Metering: its cost, by the same run with ``energy=codecarbon`` and with ``energy=off``, in turns.

    python benchmarks/metering.py --pairs 10
    python benchmarks/metering.py --pairs 5 dataset=fashion-mnist data-dir=DATA num-clients=100 \
        clients-per-round=10 strategy=random model=pereira-mlp num-server-rounds=10

Runs happen in this process (workers=1). Processor time is compared, as wall time is worth nothing
on a machine with other load, and even so pairs differ by several per cent there. So the calls that
metering consists of are clocked as well, within the metered runs: that share is stable. Starting
CodeCarbon happens once per run and is told apart: it is a fixed number of seconds, the rest grows
with the rounds. What its threads take between readings is told per second.
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

from client_app import energy
from common import config, messages, power
from common.config import Settings
from deploy.simulation import batched
from deploy.simulation.grid import simulate
from server_app.report import report


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


@dataclass(frozen=True)
class Timed:
    """Processor seconds of a run, without CodeCarbon's start and without the report.

    The report of a metered run has a picture more, which is no cost of metering.
    """

    seconds: float
    metering: float
    """Of these, in the calls that a run has only if it meters."""
    start: Apart


_CALLS = (
    (energy.Meter, "__enter__"),
    (energy.Meter, "__exit__"),
    (batched, "parted"),
    (messages, "with_usage"),
    (power.CodeCarbonSource, "read"),
)


def run(settings: Settings, metered: str) -> Timed:
    """Return what a run took."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        start = stack.enter_context(clocked(power, "open_source"))
        drawing = stack.enter_context(clocked(report, "write_report"))
        calls = [stack.enter_context(clocked(*call)) for call in _CALLS]
        began = time.process_time()
        simulate(settings.replace(energy=metered, workers=1, output_dir=folder))
        seconds = time.process_time() - began - start.cpu - drawing.cpu
        return Timed(seconds, sum(call.cpu for call in calls), start)


def threads_cost(settings: Settings, seconds: float = 5.0) -> float:
    """Return the processor seconds per second that CodeCarbon's threads take."""
    source = power.open_source(settings.replace(energy="codecarbon"))
    began = time.process_time()
    time.sleep(seconds)
    spent = time.process_time() - began
    if source is not None:
        source.close()
    return spent / seconds


def main() -> None:
    """Print the overhead of each pair and its median."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("words", nargs="*", help="settings, as for coterie simulate")
    arguments = parser.parse_args()
    settings = config.load(None, arguments.words)
    logging.getLogger("coterie").setLevel(logging.ERROR)
    first = run(settings, "codecarbon").start  # also loads what every later run finds loaded
    print(f"starting CodeCarbon: {first.wall:.2f} s, {first.cpu:.2f} s of processor time")
    print(f"its threads: {100 * threads_cost(settings):.2f} % of a processor")
    overheads, shares = [], []
    for pair in range(arguments.pairs):
        # Whoever comes second finds the caches warm, so they take turns.
        order = ("off", "codecarbon") if pair % 2 else ("codecarbon", "off")
        timed = {metered: run(settings, metered) for metered in order}
        off, metered = timed["off"].seconds, timed["codecarbon"]
        overheads.append(100 * (metered.seconds / off - 1))
        shares.append(100 * metered.metering / (metered.seconds - metered.metering))
        print(f"{off:.2f} s, metered {metered.seconds:.2f} s: {overheads[-1]:+.1f} %", end="")
        print(f", clocked {shares[-1]:.2f} %")
    for name, values in (("pairs", overheads), ("clocked calls", shares)):
        low, middle, high = np.percentile(values, [25, 50, 75])
        print(f"{name}: median {middle:+.2f} %, quartiles {low:+.2f} and {high:+.2f} %")


if __name__ == "__main__":
    main()
