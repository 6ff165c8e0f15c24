"""Pilot on the precheck's page: who gains how much by which way of training, and how sure it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from server_app.record.pilot_format import PilotChange, PilotRecord, PilotSite
from server_app.report import drawing
from server_app.report.page import PageTable, Picture
from server_app.report.precheck_words import SIGNS, candidate_words, points, told_by_pilot
from server_app.report.words import percent, plural
from server_app.transport.verdicts import Verdict

__all__ = ["PilotLine", "how_sure", "lead", "lines", "picture", "table", "ways"]

_NAMED_SITES = 15
_DRAWN_SITES = 40


@dataclass(frozen=True)
class PilotLine:
    """Sites that are told the same; one by one where there are not too many."""

    names: str
    verdict: str
    told: str
    recommended: str


def lead(pilot: PilotRecord) -> str:
    """Return what was done, for whoever decides."""
    rows = sum(site.held_out for site in pilot.sites)
    return (
        f"{plural(len(pilot.sites), 'site')} trained for {plural(pilot.rounds, 'round')} in every "
        f"way listed below, each on a part of its rows, and judged the result on {rows:,} rows in "
        "all that were held back. A change is in points against training alone: with +2 points, "
        "two more of 100 rows are classified right."
    )


def lines(pilot: PilotRecord) -> list[PilotLine]:
    """Return what each site is told, or, of many, who is told what."""
    words = candidate_words(pilot)
    if len(pilot.sites) <= _NAMED_SITES:
        return [
            PilotLine(site.site, site.verdict, told_by_pilot(site, words), words[site.recommended])
            for site in pilot.sites
        ]
    return list(_by_verdict(pilot, words))


def _by_verdict(pilot: PilotRecord, words: dict[str, str]) -> Iterator[PilotLine]:
    for verdict in Verdict:
        for way in dict.fromkeys(site.recommended for site in pilot.sites):
            mine = [s for s in pilot.sites if (s.verdict, s.recommended) == (verdict, way)]
            if mine:
                names = ", ".join(site.site for site in mine)
                yield PilotLine(plural(len(mine), "site"), str(verdict), names, words[way])


def ways(pilot: PilotRecord) -> list[tuple[str, str]]:
    """Return each way of training with its change over all sites, in words."""
    return [
        (each.words, f"{points(each.change)} points ({points(each.low)} to {points(each.high)})")
        for each in pilot.candidates
    ]


def how_sure(pilot: PilotRecord) -> Iterator[str]:
    """Yield sentences on how far the figures can be trusted."""
    yield (
        "The brackets are for other rows of the same sites: nine in ten of them. That more rounds "
        "can change the picture is not in them, and they are not calibrated: what training then "
        "shows lies outside more often."
    )
    yield (
        f"What a site trains by itself had {pilot.full_rounds} rounds, what is shared "
        f"{pilot.rounds}. Test rows were not touched."
    )
    few = [site.site for site in pilot.sites if 0 < site.held_out < 30]
    if few:
        yield f"Fewer than 30 rows to judge by: {', '.join(few)}. Little can be told there."
    rare = [site.site for site in pilot.sites if site.metric != "accuracy"]
    if rare:
        yield (
            f"Judged by balanced accuracy, each class counting alike: {', '.join(rare)}. Points of "
            "accuracy would hardly see the rare class."
        )
    unclear = [site for site in pilot.sites if site.needs]
    if unclear:
        needed = "; ".join(f"{site.site}: {site.needs}" for site in unclear[:5])
        yield f"What would change the answer where it cannot be told: {needed}."
    for what in pilot.skipped:
        yield f"Left out, for want of time: {what}."


def picture(pilot: PilotRecord) -> Picture | None:
    """Return each site's intervals; None where there are none, or too many to be told apart."""
    sites = [site for site in pilot.sites if site.changes]
    if not 0 < len(sites) <= _DRAWN_SITES:
        return None
    with drawing.style():
        figure = _intervals(sites, candidate_words(pilot))
        caption = (
            "Right of the line a site gains, left of it it loses; what crosses it cannot be told. "
            "Lines are 90 % intervals, the filled mark is what the site is recommended."
        )
        return Picture.of("changes", "Change against training alone", caption, figure)


def _intervals(sites: Sequence[PilotSite], words: dict[str, str]) -> Figure:
    names = list(dict.fromkeys(each.candidate for site in sites for each in site.changes))
    height = 0.9 + len(sites) * (0.16 * len(names) + 0.12)
    figure = Figure(figsize=(drawing.WIDE, min(height, 14)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color=drawing.INK, lw=1)
    step = 0.8 / len(names)
    for place, name in enumerate(names):
        found = [_of(site, name) for site in sites]
        shown = [(y, each) for y, each in enumerate(found) if each is not None]
        heights = np.array([y for y, _ in shown]) + (place - (len(names) - 1) / 2) * step
        middle = np.array([each.change for _, each in shown])
        ends = np.array([[each.low, each.high] for _, each in shown]).reshape(-1, 2)
        color, marker = drawing.cluster_color(place), "osD^vP"[place % 6]
        axes.hlines(heights, ends[:, 0], ends[:, 1], color=color, lw=1.6)
        axes.plot(middle, heights, marker, color=color, mfc=drawing.PAPER, ms=5, label=words[name])
        best = [row for row, (y, _) in enumerate(shown) if sites[y].recommended == name]
        axes.plot(middle[best], heights[best], marker, color=color, ms=6)
    axes.set_yticks(range(len(sites)), [drawing.short(site.site, 24) for site in sites])
    axes.set_ylim(len(sites) - 0.4, -0.6)
    axes.set_xlabel("points against training alone")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)
    return figure


def _of(site: PilotSite, name: str) -> PilotChange | None:
    return next((each for each in site.changes if each.candidate == name), None)


def table(pilot: PilotRecord) -> PageTable:
    """Return every figure behind the answer."""
    words = candidate_words(pilot)
    rows = [
        (
            site.site,
            f"{SIGNS[site.verdict]} {site.verdict}",
            words[each.candidate],
            percent(each.value),
            points(each.measured),
            f"{points(each.change)} ({points(each.low)} to {points(each.high)})",
            f"{site.held_out:,}",
            site.metric,
        )
        for site in pilot.sites
        for each in site.changes
    ]
    head = ("site", "verdict", "way of training", "metric", "measured", "change", "rows", "by")
    note = (
        f"Over {pilot.folds} folds, each row once. Measured: in points against training alone; "
        "change: the same moved towards the other sites' where there are four or more, with its "
        "90 % interval."
    )
    return PageTable("The pilot, site by site", head, rows, frozenset({0, 1, 2, 7}), note)
