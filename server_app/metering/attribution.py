"""Attribution: who of those that worked on one machine caused which part of what it drew.

A machine's counters tell no programs apart. Its joules are divided by the CPU time that each took,
those of its GPUs by the time that each kept one in use; nothing is counted twice and nothing that
the run caused is left out, so the parts add up to the reading.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from common.power import Reading, own_share

__all__ = ["Work", "divide"]


@dataclass(frozen=True)
class Work:
    """What one of them did between two readings."""

    by: Hashable
    cpu_seconds: float
    gpu_seconds: float = 0.0


def divide(reading: Reading, works: Iterable[Work]) -> dict[Hashable, float]:
    """Return the joules that fall to each, all works of one added up; NaN if not known.

    A GPU that none of them used draws for others, and does not count. Where no CPU time was
    counted at all, all fall to the first, who was there.
    """
    done = list(works)
    cpu = math.fsum(work.cpu_seconds for work in done)
    gpu = math.fsum(work.gpu_seconds for work in done)
    joules = own_share(cpu, reading.busy_seconds) * reading.joules if cpu else reading.joules
    parts: dict[Hashable, float] = {}
    for index, work in enumerate(done):
        share = work.cpu_seconds / cpu if cpu else float(index == 0)
        part = share * joules
        if work.gpu_seconds:
            part += reading.gpu_joules * work.gpu_seconds / gpu
        parts[work.by] = parts.get(work.by, 0.0) + part
    return parts
