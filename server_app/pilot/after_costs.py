"""Pilot after costs: it says who gains, and the costs stay beside it as the explanation."""

from dataclasses import replace

from flwr.serverapp import Grid

from common.config import Settings
from common.pilot.settings import PilotSettings
from common.sharing import first_shared
from server_app.clustering.algorithms import Clusters
from server_app.pilot.candidates import Candidates, groups_by_labels
from server_app.pilot.playing import Pilot
from server_app.record.pilot_format import PilotRecord, PilotSite
from server_app.record.precheck_format import PrecheckFile, PrecheckSite
from server_app.record.run_folder import RunFolder
from server_app.rounds.roster import Roster
from server_app.transport.verdicts import Verdict, overall

__all__ = ["play_after_costs", "with_pilot"]


def play_after_costs(
    settings: Settings,
    roster: Roster,
    by_cost: Clusters,
    folder: RunFolder,
    grid: Grid,
    timeout: float,
) -> None:
    """Play the pilot if a run asks for it, and put its verdicts into ``precheck.json``."""
    if not settings.of(PilotSettings).pilot:
        return
    labels = groups_by_labels(settings, roster, grid, timeout)
    offered = [(by_cost, "by OT cost")]
    offered += [] if labels is None else [(labels, "by how alike their labels are dealt")]
    candidates = Candidates.of(len(roster), offered)
    site = roster.sites[0]
    first = first_shared(settings, tuple(site.input_shape), site.num_classes)
    pilot = Pilot(settings, roster, candidates, first, folder, grid, timeout)
    folder.store(with_pilot(folder.load(PrecheckFile), pilot.play()))


def with_pilot(record: PrecheckFile, pilot: PilotRecord) -> PrecheckFile:
    """Return a precheck whose verdicts are the pilot's, the costs' beside them.

    A site whose costs could not be computed is told, too: alone, in a group behind the others.
    """
    costs = {site.site: site for site in record.sites}
    last = max((site.group for site in record.sites), default=-1)
    sites = []
    for told in pilot.sites:
        known = costs.get(told.site)
        if known is None:
            last += 1
            known = PrecheckSite(told.site, told.held_out, {}, last, str(Verdict.NOTHING))
        sites.append(_told(known, told))
    verdict = overall([Verdict(site.verdict) for site in pilot.sites])
    return replace(record, verdict=str(verdict), sites=tuple(sites), pilot=pilot)


def _told(site: PrecheckSite, pilot: PilotSite) -> PrecheckSite:
    about = next((each for each in pilot.changes if each.candidate == pilot.about), None)
    return replace(
        site,
        verdict=pilot.verdict,
        by_cost=site.verdict,
        change=about.change if about else None,
        low=about.low if about else None,
        high=about.high if about else None,
        recommended=pilot.recommended,
    )
