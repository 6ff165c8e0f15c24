"""The precheck's page: is it worth federating, for whom, in which groups, and what left each site.

Its first screen is for somebody who decides and does not program; what it rests on follows below.
One HTML file that opens offline, made from ``precheck.json`` and ``privacy.json``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from server_app.protection import disclosed
from server_app.record.recorded_run import Json, RecordedRun
from server_app.record.run_folder import RunFolder
from server_app.report import plots
from server_app.report import releases as report_releases
from server_app.report.page import Picture, Table, render
from server_app.report.plots import byte_size, cluster_color
from server_app.report.precheck_words import SIGNS, approach, cost, counted, headline, told
from server_app.report.words import percent, plural
from server_app.transport.verdicts import Verdict

__all__ = ["FILE", "write_page"]

FILE = "precheck.html"

_MATRIX_SITES = 15  # more do not fit into a table that can be read
_NAMED_SITES = 15  # more are told by group and verdict
_KINDS = {
    Verdict.BENEFICIAL: "good",
    Verdict.UNCERTAIN: "open",
    Verdict.DETRIMENTAL: "bad",
    Verdict.NOTHING: "none",
}


@dataclass(frozen=True)
class Mark:
    """A verdict as the page shows it: a word, its sign and the style that goes with it."""

    word: str
    sign: str
    kind: str

    @classmethod
    def of(cls, verdict: str) -> "Mark":
        """Return the mark of a verdict."""
        return cls(verdict, SIGNS[verdict], _KINDS[Verdict(verdict)])


@dataclass(frozen=True)
class Line:
    """Sites of a group that are told the same; one by one where there are not too many."""

    names: str
    mark: Mark
    told: str


@dataclass(frozen=True)
class GroupCard:
    """A recommended group on the first screen."""

    title: str
    color: str
    lines: list[Line]
    approach: str
    reason: str


@dataclass(frozen=True)
class Cell:
    """A pair in the matrix."""

    cost: str
    note: str
    kind: str


@dataclass(frozen=True)
class DisclosedRow:
    """One kind of thing that left the sites, and how it was protected."""

    what: str
    often: str
    protection: str
    kind: str


def write_page(folder: RunFolder, run: RecordedRun) -> Path:
    """Write ``precheck.html`` of a run whose sites were compared; return its path."""
    record = run.precheck
    page = render(
        _TEMPLATE,
        name=run.name,
        mark=Mark.of(record["verdict"]),
        headline=headline(record),
        lead=_lead(record),
        counted=counted(record),
        groups=[_card(number, group, record) for number, group in enumerate(record["groups"])],
        releases=list(_releases(run.privacy)),
        sure=list(_how_sure(record)),
        order=_by_group(record) if len(record["sites"]) <= _MATRIX_SITES else [],
        cells=_cells(record),
        pictures=_pictures(run),
        limits=record["thresholds"],
        tables=[
            _site_table(record),
            _pair_table(record),
            _class_table(record),
            *report_releases.tables(run.privacy, run.central),
            _settings_table(run),
        ],
    )
    folder.write(FILE, page)
    return folder.path / FILE


# --- the first screen --------------------------------------------------------------------------


def _lead(record: Json) -> str:
    rows = sum(site["rows"] for site in record["sites"])
    limits = record["thresholds"]
    return (
        f"{plural(len(record['sites']), 'site')} with {rows:,} training rows trained one model "
        "together for one round. That model then looked at every site's rows. The cost between "
        "two sites says how far apart their data are in its eyes: 0 is the same, 1 the opposite. "
        f"Up to {limits['beneficial']:g} training together should help, from "
        f"{limits['detrimental']:g} on it should harm."
    )


def _card(number: int, group: Json, record: Json) -> GroupCard:
    mine = [site for site in record["sites"] if site["group"] == number]
    few = len(record["sites"]) <= _NAMED_SITES
    lines = [_line(site, record) for site in mine] if few else list(_lines_by_verdict(mine))
    title = "Alone" if len(mine) == 1 else f"Group {number + 1}: {plural(len(mine), 'site')}"
    return GroupCard(
        title, cluster_color(number), lines, approach(group), group["advice"]["reason"]
    )


def _line(site: Json, record: Json) -> Line:
    figures = "" if site["cost"] is None else f" (cost {cost(site['cost'])})"
    words = told(site, record["thresholds"])
    return Line(site["site"], Mark.of(site["verdict"]), words + figures)


def _lines_by_verdict(sites: list[Json]) -> Iterator[Line]:
    for verdict in Verdict:
        names = [site["site"] for site in sites if site["verdict"] == verdict]
        if names:
            yield Line(plural(len(names), "site"), Mark.of(verdict), ", ".join(names))


def _releases(privacy: Json) -> Iterator[DisclosedRow]:
    """Yield what left the sites, whatever shape it had at each of them."""
    kinds: dict[tuple[str, str], list[Json]] = {}
    for entry in privacy.get("releases", ()):
        tallies = entry["sites"].values()
        kinds.setdefault((entry["what"], entry["mechanism"]), []).extend(tallies)
    for (what, mechanism), tallies in kinds.items():
        low, high = (byte_size(pick(tally["bytes"] for tally in tallies)) for pick in (min, max))
        size = low if low == high else f"{low} to {high}"
        times = max(tally["times"] for tally in tallies)
        often = "once" if times == 1 else f"{times} times"
        clear = mechanism == disclosed.CLEAR
        yield DisclosedRow(what, f"{often}, {size} a site", mechanism, "bad" if clear else "good")


def _how_sure(record: Json) -> Iterator[str]:
    pairs = [pair for pair in record["pairs"] if pair["cost"] is not None]
    nulls = [pair["null"] for pair in pairs if pair["null"] is not None]
    if nulls:
        yield (
            f"Chance alone would make a cost of up to {max(nulls):.3f} of equal data with as few "
            "rows as these (the null, drawn anew for each pair). A cost within its null says "
            "nothing about a difference."
        )
    elif pairs:
        yield "What chance alone would make is not known: nobody saw one site's rows to draw from."
    if pairs:
        least = min(min(pair["coverage"]) for pair in pairs)
        yield (
            f"In each comparison at least {least:.0%} of a site's rows took part; the others are "
            f"of classes of which one of the two has fewer than {record['min_rows']} rows."
        )
    yield (
        "Rows are compared within their class: that one site has far more of a class than another "
        "does not count, nor by which rules they label their rows. Where sites differ in that, a "
        "common model can harm although the cost is low."
    )
    yield (
        "This is a forecast from distances after one round, not a measurement of what training "
        "gives. The thresholds and the advice on training are rules of thumb."
    )


# --- below it ----------------------------------------------------------------------------------


def _by_group(record: Json) -> list[str]:
    return [name for group in record["groups"] for name in group["sites"]]


def _cells(record: Json) -> dict[tuple[str, str], Cell]:
    cells = {}
    for pair in record["pairs"]:
        first, second = pair["sites"]
        null = pair["null"]
        chance = "" if null is None else f"chance up to {null:.3f}; "
        kind = _KINDS[Verdict(pair["verdict"])]
        for one, other, share in zip(
            (first, second), (second, first), pair["coverage"], strict=True
        ):
            figure = f"{SIGNS[pair['verdict']]} {cost(pair['cost'])}"
            cells[one, other] = Cell(figure, f"{chance}{share:.0%} of rows", kind)
    return cells


def _pictures(run: RecordedRun) -> list[Picture]:
    if run.grouping is None:
        return []
    grouping, limit = run.grouping, run.precheck["thresholds"]["detrimental"]
    found = []
    with plots.style():
        if len(grouping.sites.names) > _MATRIX_SITES:
            figure = plots.dissimilarities(grouping.distances, grouping.sites, "OT cost")
            caption = "Dark is near: squares along the diagonal are the recommended groups."
            found.append(Picture.of("costs", "Costs between the sites", caption, figure))
        merges = grouping.linkage
        if merges is not None and 0 < len(merges) < plots.TREE_SITES:
            figure = plots.dendrogram(merges, grouping.sites)
            [axes] = figure.axes
            axes.set_ylim(top=max(axes.get_ylim()[1], 1.15 * limit))
            axes.axhline(limit, color=plots.GREY, ls="--", lw=1, label="detrimental from here")
            axes.legend(loc="upper right")
            axes.set_ylabel("mean cost between the groups")
            caption = (
                "Groups merge from below while the mean cost between their sites stays under the "
                "dashed line; what joins above it is better kept apart."
            )
            found.append(Picture.of("merges", "How the groups came about", caption, figure))
    return found


def _site_table(record: Json) -> Table:
    rows = [
        (
            site["site"],
            f"{SIGNS[site['verdict']]} {site['verdict']}",
            str(site["group"] + 1),
            cost(site["cost"]),
            cost(site["null"]),
            site["nearest"] or "nobody",
            f"{site['rows']:,}",
            ", ".join(f"{label}: {count:,}" for label, count in site["classes"].items()) or "none",
        )
        for site in record["sites"]
    ]
    head = ("site", "verdict", "group", "cost", "chance", "nearest", "rows", "classes: rows")
    note = (
        "Cost: the mean to the others in the group; of a site alone, that to the nearest. Chance: "
        "what equal data would cost at most (95 %). Classes: those with "
        f"{record['min_rows']} rows or more."
    )
    colors = tuple(cluster_color(site["group"]) for site in record["sites"])
    return Table("Site by site", head, rows, frozenset({0, 1, 5, 7}), note, colors)


def _pair_table(record: Json) -> Table:
    rows = [
        (
            " and ".join(pair["sites"]),
            f"{SIGNS[pair['verdict']]} {pair['verdict']}",
            cost(pair["cost"]),
            cost(pair["null_mean"]),
            cost(pair["null"]),
            " and ".join(percent(share) for share in pair["coverage"]),
            "; ".join(pair["warnings"]) or "none",
        )
        for pair in sorted(record["pairs"], key=lambda pair: (pair["cost"] is None, pair["cost"]))
    ]
    head = ("pair", "verdict", "cost", "chance, mean", "chance, 95 %", "rows compared", "remarks")
    note = "The nearest first. Uncertain: between the thresholds, or within what chance would make."
    return Table("Pair by pair", head, rows, frozenset({0, 1, 5, 6}), note)


def _class_table(record: Json) -> Table:
    rows = [
        (
            " and ".join(pair["sites"]),
            str(each["class"]),
            " and ".join(f"{count:,}" for count in each["rows"]),
            *(f"{each[key]:.3f}" for key in ("feature_cost", "label_cost", "cost")),
        )
        for pair in record["pairs"]
        for each in pair["classes"]
    ]
    weights = record["weights"]
    note = (
        f"Variant {record['variant']}: feature cost (optimal transport on angles) and label cost "
        f"(distance of the class's Gaussians) weigh {weights['feature']:g} to "
        f"{weights['label']:g}."
    )
    head = ("pair", "class", "rows", "feature cost", "label cost", "cost")
    return Table("Class by class", head, rows, frozenset({0}), note)


def _settings_table(run: RecordedRun) -> Table:
    rows = [(key, str(value)) for key, value in run.settings.items()]
    return Table("Settings", ("name", "value"), rows, frozenset({0, 1}))


_TEMPLATE = """\
{% extends "frame" %}
{% from "parts" import gallery, sections %}
{% macro chip(mark) -%}
<span class="chip {{ mark.kind }}">{{ mark.sign }} {{ mark.word }}</span>
{%- endmacro %}
{% block title %}{{ headline }}{% endblock %}
{% block style %}
:root {
  --good: #14692d; --open: #7a5200; --bad: #a61b10; --none: #59616b;
  --good-back: #dff3e4; --open-back: #fdf0cf; --bad-back: #fbe3e0; --none-back: #eceef1;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --good: #7fdc9a; --open: #f0c95c; --bad: #ffa198; --none: #a3abb5;
    --good-back: #16341f; --open-back: #3a2f10; --bad-back: #431d1a; --none-back: #2a2e34;
  }
}
.asked { color: var(--quiet); margin: 0; font-size: 1rem; font-weight: 600; }
.answer { font-size: 1.9rem; line-height: 1.25; margin: 2px 0 8px; }
.good { color: var(--good); } .open { color: var(--open); }
.bad { color: var(--bad); } .none { color: var(--none); }
.chip {
  border-radius: 999px; padding: 1px 10px; font-size: .82rem; font-weight: 600;
  white-space: nowrap;
}
.chip.good, td.good { background: var(--good-back); }
.chip.open, td.open { background: var(--open-back); }
.chip.bad, td.bad { background: var(--bad-back); }
.chip.none, td.none { background: var(--none-back); }
.columns {
  display: grid; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); gap: 16px; margin-top: 18px;
}
.columns h2, .columns h3 { margin: 0 0 8px; }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px;
}
.card + .card { margin-top: 12px; }
.group { border-left: 5px solid; padding: 2px 0 2px 12px; margin-top: 12px; }
.group ul, .left { list-style: none; margin: 4px 0; padding: 0; }
.group li {
  display: grid; grid-template-columns: minmax(5em, 7.5em) 8.4em 1fr; gap: 2px 10px;
  align-items: baseline; margin: 4px 0;
}
.group li b { overflow-wrap: anywhere; }
.group .chip { justify-self: start; }
.left li { margin: 0 0 9px; line-height: 1.4; }
.left li::first-letter { text-transform: uppercase; }
.dots { margin: 0; padding-left: 1.1em; font-size: .9rem; }
.small { font-size: .85rem; color: var(--quiet); }
.card p { margin: 4px 0; }
.matrix td, .matrix th { padding: 6px 10px; border: 1px solid var(--line); text-align: center; }
.matrix td b { display: block; font-size: 1rem; white-space: nowrap; }
.matrix td { font-size: .78rem; }
.matrix th { overflow-wrap: anywhere; min-width: 6em; }
@media (max-width: 860px) { .columns { grid-template-columns: minmax(0, 1fr); } }
@media print { .chip, td { print-color-adjust: exact; } }
{% endblock %}
{% block body %}
<header>
<p class="asked">Is it worth federating?</p>
<h1 class="answer"><span class="{{ mark.kind }}">{{ mark.sign }}</span> {{ headline }}</h1>
<p class="lead">{{ lead }}</p>
</header>
<main>
<div class="columns">
<div>
<section class="card">
<h2>For whom, and with whom: {{ counted }}</h2>
{% for group in groups %}
<div class="group" style="border-color:{{ group.color }}">
<h3>{{ group.title }}</h3>
<ul>
{% for line in group.lines %}
<li><b>{{ line.names }}</b> {{ chip(line.mark) }} <span class="small">{{ line.told }}</span></li>
{% endfor %}
</ul>
<p class="small">To try: <b>{{ group.approach }}</b>. Why: {{ group.reason }}.</p>
</div>
{% endfor %}
</section>
<section class="card">
<h2>How sure this is</h2>
<ul class="dots">
{% for sentence in sure %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
</section>
</div>
<section class="card">
<h2>What left each site</h2>
<ul class="left">
{% for release in releases %}
<li>{{ release.what }}<br><span class="chip {{ release.kind }}">{{ release.protection }}</span>
<span class="small">{{ release.often }}</span></li>
{% else %}
<li class="small">Not known: privacy.json is missing.</li>
{% endfor %}
</ul>
<p class="small"><b>In the clear</b>: whoever runs the server can read it. The rows themselves
stayed, but a model, and above all what it makes of single rows, can tell much about them.</p>
</section>
</div>
{% if order %}
<h2>Cost of every pair</h2>
<p class="quiet">✓ up to {{ limits.beneficial }}, ✗ from {{ limits.detrimental }}, ? between or
within what chance alone would make; ○ nothing to compare. Below: the most that equal data would
cost by chance (95 %), and the share of the row's site that was compared with the column's.</p>
<div class="scroll">
<table class="matrix">
<thead><tr><td></td>{% for name in order %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for one in order %}
<tr><th scope="row">{{ one }}</th>
{% for other in order %}
{% if one == other %}
<td class="small">itself</td>
{% else %}
{% set cell = cells[(one, other)] %}
<td class="{{ cell.kind }}"><b>{{ cell.cost }}</b>{{ cell.note }}</td>
{% endif %}
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% endif %}
{% if pictures %}
<h2>Pictures</h2>
{{ gallery(pictures) }}
{% endif %}
{{ sections(tables) }}
<p class="quiet">Run {{ name }}; report.html beside this page tells how the training went.</p>
</main>
{% endblock %}
"""
