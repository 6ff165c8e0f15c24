"""Schedules: how the learning rate of the sites' steps goes down over the rounds."""

import functools
import math
from collections.abc import Callable

from common.config import Training
from common.errors import ConfigError
from common.foreign.code import contained
from common.plugins import Table

__all__ = ["SCHEDULES", "in_round"]

Schedule = Callable[[int, int], float]
"""(round from 1, rounds of the run) -> factor of ``learning-rate``, above 0."""


def _constant(server_round: int, rounds: int) -> float:
    return 1.0


def _cosine(server_round: int, rounds: int) -> float:
    """Return the half wave of Loshchilov & Hutter 2017, eq. 5, without restarts and with floor 0.

    >>> [_cosine(server_round, 3) for server_round in (1, 2, 3)]
    [1.0, 0.75, 0.25]
    """
    return round((1 + math.cos(math.pi * (server_round - 1) / rounds)) / 2, 12)


def _step(server_round: int, rounds: int) -> float:
    """Return a tenth from half of the rounds on, a hundredth from three quarters: He et al. 2016.

    >>> [_step(server_round, 8) for server_round in (4, 5, 6, 7, 8)]
    [1.0, 0.1, 0.1, 0.01, 0.01]
    """
    done = (server_round - 1) / rounds
    return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01


SCHEDULES: Table[Schedule] = Table(
    "schedule",
    "coterie.schedules",
    {"constant": _constant, "cosine": _cosine, "step": _step},
    of=Callable,
)
"""What ``schedule`` can name."""


@functools.lru_cache(maxsize=4)
def in_round(settings: Training, server_round: int) -> Training:
    """Return a run's settings with the learning rate of a round in place of the first one.

    A round beyond the last has the last one's.
    """
    rounds = settings.num_server_rounds
    with contained(f"schedule = {settings.schedule!r}"):
        factor = float(SCHEDULES.named(settings.schedule)(min(server_round, rounds), rounds))
        if not 0 < factor < math.inf:
            raise ConfigError(f"gives {factor} in round {server_round}; it must be above 0")
    if factor == 1:
        return settings
    return settings.model_copy(update={"learning_rate": settings.learning_rate * factor})
