"""Runs of a comparison on a Ray cluster: a task on each core, which plays what it can claim.

The comparison's folder lies where all nodes see it. A task that is lost with its node is begun
anew by Ray, and whoever plays on takes over the claims that it left.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError

from deploy.compare.grid import Case
from deploy.compare.runs import Outcome, Progress, Report, number_there, outcomes_of, play_claimed
from deploy.simulation.cluster import join, reason_of

__all__ = ["play_on_cluster"]

_TICK_SECONDS = 1.0


def play_on_cluster(
    cases: Sequence[Case], folder: Path, jobs: int, report: Report, address: str
) -> list[Outcome]:
    """Run what has not finished yet on a cluster, and return all outcomes in order.

    Args:
        cases: of the comparison.
        folder: its own.
        jobs: tasks; 0: one per core of the cluster.
        report: is told, now and then, where the comparison stands.
        address: of the cluster, ``host:port``; or ``auto``.
    """
    before = number_there(cases, folder)
    progress = Progress(len(cases), before, time.monotonic(), [])
    report(progress)
    join(address)
    try:
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call] # Ray's own
        count = min(jobs or int(resources.get("CPU", 1)), max(1, len(cases) - before))
        remote: Any = ray.remote
        task = remote(num_cpus=1, max_retries=-1)(play_claimed)
        waiting = [task.remote(cases, folder) for _ in range(count)]
        errors: dict[str, str] = {}
        while waiting:
            ended, waiting = ray.wait(waiting, num_returns=1, timeout=_TICK_SECONDS)
            for one in ended:
                errors |= ray.get(one)
            progress.found = number_there(cases, folder)
            progress.running = len(waiting)
            report(progress)
    except RayTaskError as error:
        raise reason_of(error, address) from None
    finally:
        ray.shutdown()
    return outcomes_of(cases, folder, errors, "no task has played it")
