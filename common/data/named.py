"""Named data: what a data set's name says, beside how its files are read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.data.data_folder import DataFolder
from common.data.rows import Rows

Reader = Callable[[DataFolder], Rows]
"""Reads a data set's files as they lie on disk; scales and splits nothing."""


@dataclass(frozen=True)
class NamedData:
    """A data set with a name, and what that name says beside its rows."""

    read: Reader
    read_site: Callable[[Path], Rows] | None = None
    """Reads what one site has of it, a file or folder; without, a site's file is its own data."""
    task: str = "classification"
    """What is learnt of it where the settings do not say."""
    by_centre: bool = False
    """Whether its centres are the sites unless the settings say otherwise."""
    test_splits: Mapping[str, Reader] = field(default_factory=dict)
    """Readers of the same rows with other rows held out, by value of the setting ``test-split``."""
    planted: Callable[[str], str] | None = None
    """Returns the group that was made of a site, by the site's name; None: no groups were made."""
