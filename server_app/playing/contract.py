"""Contract of a run's rounds: what stays as it is from the first to the last."""

from dataclasses import dataclass, field
from typing import Self

from flwr.serverapp import Grid

from common.config import Settings
from common.identity import SignedKeys
from server_app.aggregation.aggregator import Aggregator
from server_app.groupings.grouping import Description, Grouping
from server_app.metering.run_meter import RunMeter
from server_app.methods import Method
from server_app.playing.fits import SummedFits
from server_app.protection.central_dp import CentralDp
from server_app.record.run_folder import RunFolder
from server_app.rounds.attempt import Federation
from server_app.rounds.roster import Roster
from server_app.rounds.update_norms import UpdateNorms

__all__ = ["Contract", "Nothing"]


@dataclass(frozen=True)
class Nothing(Description):
    """Sites that a method asks nothing of, to describe them by."""

    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Contract:
    """What every round of a run is played by."""

    method: Method
    settings: Settings
    folder: RunFolder
    grid: Grid
    timeout: float
    """Seconds to wait in each exchange."""
    meter: RunMeter
    """That the grid enters its messages into."""
    aggregator: Aggregator
    norms: UpdateNorms
    """Judge of updates that are far longer than others."""
    central: CentralDp | None
    """Where models get noise before they leave the server."""
    fits: SummedFits | None = None
    """What fits the models, where that is from sums over rows."""
    sum_keys: dict[str, SignedKeys] = field(default_factory=dict, repr=False)
    """That sites offered for their next secure sum."""

    @classmethod
    def of(
        cls,
        method: Method,
        settings: Settings,
        roster: Roster,
        folder: RunFolder,
        grid: Grid,
        timeout: float,
        meter: RunMeter,
    ) -> Self:
        """Return that of a run with these sites."""
        return cls(
            method=method,
            settings=settings,
            folder=folder,
            grid=grid,
            timeout=timeout,
            meter=meter,
            aggregator=Aggregator(settings, roster),
            norms=UpdateNorms.of(settings),
            central=CentralDp.chosen(settings, folder),
            fits=SummedFits.chosen(settings, roster, folder),
        )

    @property
    def description(self) -> Description:
        """What is asked of the sites."""
        return self.method.asked or Nothing()

    @property
    def grouping(self) -> Grouping | None:
        """What groups them."""
        return self.method.group

    def federation(self, roster: Roster) -> Federation:
        """Return the sites, and how they are reached."""
        say = self.folder.say_asking
        return Federation(roster, self.grid, self.meter, self.timeout, say, self.sum_keys)
