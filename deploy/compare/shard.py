"""Shard: the part of a comparison's runs that one of several calls plays."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from common.errors import ConfigError
from deploy.compare.grid import Case

__all__ = ["WHOLE", "Shard"]


@dataclass(frozen=True)
class Shard:
    """Every ``of_all``-th run, beginning with number ``number``."""

    number: int = 1
    """From 1."""
    of_all: int = 1

    def __post_init__(self) -> None:
        assert 1 <= self.number <= self.of_all

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what ``i/n`` says.

        Raises:
            ConfigError: it says nothing of the kind.
        """
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        number, of_all = map(int, match.groups()) if match else (0, 0)
        if not 1 <= number <= of_all:
            raise ConfigError(f"--shard {text}: give i/n, the i-th of n parts: 1/4, ..., 4/4")
        return cls(number, of_all)

    @property
    def of_several(self) -> bool:
        """Whether there are others."""
        return self.of_all > 1

    def of(self, cases: Sequence[Case]) -> Sequence[Case]:
        """Return its cases; the shards of a number have every case once."""
        return cases[self.number - 1 :: self.of_all]


WHOLE: Final = Shard()
"""All runs."""
