"""Page of a comparison: one HTML file that opens offline, and its pictures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from deploy.compare import plots as compare_plots
from deploy.compare.columns import COLUMNS, Column
from deploy.compare.figures import Row, common_joules
from deploy.compare.grid import Grid, identity
from deploy.compare.runs import Outcome
from deploy.compare.tables import (
    columns_of,
    differences,
    head_and_cells,
    legend,
    overall,
    scenarios,
)
from server_app.report import drawing
from server_app.report.page import PageTable, Picture, render


@dataclass(frozen=True)
class Section:
    """What the page shows of one scenario."""

    title: str
    table: PageTable
    differences: PageTable | None
    """To the reference; None without one."""
    pictures: list[Picture]
    absences: list[str]
    """Which pictures cannot be drawn, and why."""


def sections(rows: Sequence[Row], grid: Grid) -> list[Section]:
    """Return every scenario's table and drawn pictures."""
    with drawing.style():
        return [
            _section(number, scenario, group, grid)
            for number, (scenario, group) in enumerate(scenarios(rows), start=1)
        ]


def html(
    parts: Sequence[Section], rows: Sequence[Row], outcomes: Sequence[Outcome], grid: Grid
) -> str:
    """Return the page; every text is escaped, only the pictures' elements are markup."""
    over, ranks = overall(rows, grid) if rows else ([], [])
    failed = [outcome for outcome in outcomes if outcome.error]
    done = sum(outcome.folder is not None for outcome in outcomes)
    whole = "finished" if done == len(outcomes) else "interrupted"
    return render(
        _TEMPLATE,
        grid=grid,
        state="failed" if failed else whole,
        done=done,
        total=len(outcomes),
        failed=failed,
        settings=_shared_settings(grid),
        legend=legend(rows, grid) if rows else [],
        over=[_table(head, cells, title) for title, head, cells in over],
        ranks=ranks,
        sections=parts,
    )


def _shared_settings(grid: Grid) -> str:
    """Return in words the settings of all runs that are not the defaults."""
    first, *others = (identity(case.settings) for case in grid.cases)
    same = {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
    return ", ".join(f"{key}={value}" for key, value in same.items()) or "the defaults"


def _section(number: int, scenario: str, rows: Sequence[Row], grid: Grid) -> Section:
    head, cells = head_and_cells(rows, grid)
    beside, others = differences(rows, grid)
    metered = all(common_joules(row.runs)[0].size for row in rows)
    drawn = _pictures(rows, grid, metered=metered)
    return Section(
        title=scenario or "All runs",
        table=_table(head, cells),
        differences=_table(beside, others) if others else None,
        pictures=[_picture(number, *entry) for entry in drawn],
        absences=[] if metered else ["Energy: not metered in every run (energy=codecarbon)"],
    )


def _table(head: Sequence[str], cells: Sequence[Sequence[str]], title: str = "") -> PageTable:
    return PageTable(title, tuple(head), [tuple(line) for line in cells], frozenset({0}))


def _pictures(
    rows: Sequence[Row], grid: Grid, *, metered: bool
) -> Iterable[tuple[str, str, str, Figure, bool]]:
    """Yield name, title, caption, figure and whether it is wide."""
    against = "rounds and energy" if metered else "rounds"
    yield (
        "accuracy",
        f"Accuracy against {against}",
        "Mean over seeds with a band of one standard deviation, as far as the runs of all seeds "
        "go; the higher and the further left, the better."
        + (" Dotted: the target." if grid.target else ""),
        compare_plots.accuracy_curves(rows, grid.target),
        True,
    )
    for key in compare_plots.swept(rows):
        yield (
            key,
            f"Against {key}",
            "Mean over seeds with one standard deviation.",
            compare_plots.sweep(rows, key, _sweep_columns(rows, grid)),
            True,
        )
    if metered and len({run.num_parameters for row in rows for run in row.runs}) > 1:
        yield (
            "communication",
            "Share of communication against model size",
            "Mean over seeds with one standard deviation.",
            compare_plots.communication_shares(rows),
            True,
        )
    if metered:
        yield (
            "energy",
            "Energy of a run by phase",
            "Mean over seeds with one standard deviation of the total; evaluation is not counted.",
            compare_plots.energy_by_phase(rows),
            False,
        )
    yield (
        "selection",
        "How often sites were selected",
        "A flat line uses all sites alike; a steep one rests on a few. Same lines as above.",
        compare_plots.selection_frequency(rows),
        False,
    )


_SWEEP = ("rounds_to_target", "held_accuracy", "joules_to_target", "joules")


def _sweep_columns(rows: Sequence[Row], grid: Grid) -> list[Column]:
    """Return what a sweep shows: the first accuracy and the first energy that are known."""
    known = {column.key: column for column in columns_of(rows, grid)}
    chosen = [known[key] for key in _SWEEP if key in known]
    accuracies = [column for column in chosen if "joules" not in column.key]
    energies = [column for column in chosen if "joules" in column.key]
    last = [column for column in COLUMNS if column.key == "accuracy"]
    return (accuracies or last)[:1] + energies[:1]


def _picture(
    number: int, kind: str, title: str, caption: str, figure: Figure, wide: bool
) -> Picture:
    name = f"{number}-{kind}"
    document = drawing.svg(figure, title)
    return Picture(name, title, caption, document, drawing.inline(document, f"p{name}"), wide)


_TEMPLATE = """\
{% extends "frame" %}
{% from "parts" import gallery, table %}
{% block title %}{{ grid.title }}{% endblock %}
{% block style %}
body { max-width: 1500px; }
.scroll { margin-bottom: 16px; }
.scroll table { width: auto; min-width: 60%; }
.scroll tbody tr:hover td { background: var(--page); }
.scroll th.number { white-space: normal; vertical-align: bottom; }
.scroll table { font-size: .8rem; }
.scroll th:first-child { vertical-align: bottom; }
.scroll th:first-child, .scroll td:first-child {
  white-space: nowrap; position: sticky; left: 0; background: var(--card);
}
.meanings { columns: 30em; font-size: .88rem; color: var(--quiet); padding-left: 1.2em; }
{% endblock %}
{% block body %}
<header>
<h1>{{ grid.title }} <span class="badge {{ state }}">{{ done }} of {{ total }} runs</span></h1>
{% if grid.note %}
<p class="lead">{{ grid.note }}</p>
{% endif %}
<p class="lead">Same in all runs: {{ settings }}.</p>
{% if failed %}
<div class="error" role="alert"><strong>Not every run finished:</strong>
<ul>{% for outcome in failed %}<li>{{ outcome.case.label }}: {{ outcome.error }}</li>
{% endfor %}</ul></div>
{% endif %}
</header>
<main>
{% if over %}
<section>
<h2>Over all federations</h2>
{% for each in over %}
<h3>{{ each.title }}</h3>
<div class="scroll">
{{ table(each) }}
</div>
{% endfor %}
{% for sentence in ranks %}
<p>{{ sentence }}</p>
{% endfor %}
</section>
{% endif %}
{% for section in sections %}
<section>
<h2>{{ section.title }}</h2>
<div class="scroll">
{{ table(section.table) }}
</div>
{% if section.differences %}
<div class="scroll">
{{ table(section.differences) }}
</div>
{% endif %}
{{ gallery(section.pictures) }}
{% for absence in section.absences %}
<p class="absent">Not shown: {{ absence }}.</p>
{% endfor %}
</section>
{% endfor %}
{% if legend %}
<section>
<h2>What the columns mean</h2>
<p>{{ legend[0] }}</p>
<ul class="meanings">
{% for line in legend[1:] %}
<li>{{ line }}</li>
{% endfor %}
</ul>
</section>
{% endif %}
</main>
{% endblock %}
"""
