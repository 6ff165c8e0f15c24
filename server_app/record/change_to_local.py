"""Change to local: what a run gives each site over training alone, in per cent."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic.fields import FieldInfo

from common.config import Settings
from common.errors import DataError
from common.schema import NotSet
from server_app.record.format import ChangeToLocalFile, SiteChangeEntry
from server_app.record.recorded_run import RecordedRun
from server_app.record.run_folder import RunFolder

__all__ = ["ChangeToLocal", "SiteChange", "changes_to_local", "write"]

_EQUAL = (
    *("dataset", "test-fraction", "num-clients", "split", "dirichlet-alpha", "num-partitions"),
    *("min-partition-size", "shift", "shift-size", "synthetic-rows", "seed", "model"),
    *("batch-size", "local-epochs", "local-steps", "learning-rate", "momentum", "weight-decay"),
    "num-server-rounds",
)
"""Settings that two runs must share for their difference to be that of federating."""


@dataclass(frozen=True)
class SiteChange:
    """One site's scores at the end of both runs."""

    score: float
    local: float

    @property
    def change(self) -> float:
        """Return 100 (m - m_local)/|m_local| (Elhussein & Gürsoy); NaN where m_local is 0."""
        if self.local == 0:
            return math.nan
        return 100 * (self.score - self.local) / abs(self.local)


@dataclass(frozen=True)
class ChangeToLocal:
    """What a run gave each site over a run of ``objective=local``."""

    local_run: str
    """Name of that run's folder."""
    sites: Mapping[str, SiteChange]

    @property
    def mean(self) -> float:
        """Mean change in per cent, each site counting once, without those that have none."""
        known = [site.change for site in self.sites.values() if not math.isnan(site.change)]
        return sum(known) / len(known) if known else math.nan

    def as_file(self) -> ChangeToLocalFile:
        """Return what the run's folder keeps; NaN where there is no change to tell."""
        sites = {
            name: SiteChangeEntry(site.score, site.local, site.change)
            for name, site in self.sites.items()
        }
        return ChangeToLocalFile(self.local_run, self.mean, sites)


def changes_to_local(run: Path, local: Path, *, tuned: bool = False) -> ChangeToLocal:
    """Return what a finished run gave its sites over one of ``objective=local``.

    Args:
        run: folder of the run.
        local: folder of the run of ``objective=local``.
        tuned: whether of the run counts what fine-tuning made of its models.

    Raises:
        DataError: a folder is not that of a finished run, ``local`` had another objective, the
            settings of data and training differ, or no site took part in both.
    """
    ours, alone = _finished(run), _finished(local)
    if alone.settings.get("objective") != "local":
        raise DataError(
            f"{local}: objective = {alone.settings.get('objective')}; name a run of objective=local"
        )
    fields = Settings.fields()
    for key in _EQUAL:
        field = fields[key.replace("-", "_")]
        one, other = (_set_by(each.settings, key, field) for each in (ours, alone))
        if one != other:
            raise DataError(
                f"{key} = {one!r} in {run}, {other!r} in {local}: repeat the local run with the "
                "settings of the other"
            )
    found = ours.tuned if tuned else ours.evaluated
    if not found and tuned:
        raise DataError(f"{run}: nothing was fine-tuned; set fine-tune-epochs")
    shared = sorted(found.keys() & alone.evaluated.keys())
    if not shared:
        raise DataError(f"no site was evaluated in both {run} and {local}")
    sites = {name: SiteChange(found[name], alone.evaluated[name]) for name in shared}
    return ChangeToLocal(alone.name, sites)


def write(run: Path, changes: ChangeToLocal) -> None:
    """Put the changes into a run's folder, where the report finds them."""
    RunFolder(run).store(changes.as_file())


def _set_by(settings: Mapping[str, object], key: str, field: FieldInfo) -> object:
    """Return a setting of a run; the default where an earlier version wrote another word for it."""
    value = settings.get(key, field.default)
    return field.default if NotSet.is_former(field, value) else value


def _finished(path: Path) -> RecordedRun:
    run = RecordedRun.read(path)
    if run.state != "finished":
        raise DataError(f"{path}: not the folder of a finished run (its state is {run.state})")
    return run
