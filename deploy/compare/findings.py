"""Findings: what runs say of a paper's claim, with the figures that the verdict rests on.

*Held*: for every method of the claim the 95 % interval of the paired differences lies on the
claimed side of 0. *Weaker*: every mean does, and some interval has 0 inside; or the paper prints
how much, and it is less than half of that. *Not seen*: some mean lies on the other side. A claim
that methods lie no higher is held where no interval lies above 0. *Open*: fewer than two pairs.

A method with a setting of several values is its best row in the scenario by the claim's figure, as
papers have it that print their best setting; it is picked after the fact.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from common.config import unknown_name
from common.errors import ConfigError
from deploy.compare.columns import COLUMNS, Column
from deploy.compare.figures import Row
from deploy.compare.grid import Grid
from deploy.compare.paired import Difference, difference
from deploy.compare.plan import PaperClaim
from deploy.compare.tables import paper_of

__all__ = ["ClaimFinding", "Upshot", "findings_of", "findings_table"]

_PRINTED_AS = {
    "rounds_to_target": "rounds",
    "clients_per_round": "clients",
    "accuracy": "accuracy",
    "training_joules_to_target_of_reference": "training-energy",
}
"""Of a column: the figure of the paper that is in the same unit."""
_SLACK = 0.05  # of a printed number, which is rounded to a tenth


class Upshot(StrEnum):
    """What became of a claim."""

    HELD = "held"
    WEAKER = "weaker"
    NOT_SEEN = "not seen"
    OPEN = "open"
    NOT_TESTABLE = "not testable here"


@dataclass(frozen=True)
class ClaimFinding:
    """A claim, what became of it, and why."""

    says: str
    standing: Upshot
    reason: str


def findings_of(rows: Sequence[Row], grid: Grid, element: str = "") -> list[ClaimFinding]:
    """Return what the rows say of a comparison's claims, scenario by scenario.

    Args:
        rows: of the runs that are there.
        grid: the comparison.
        element: of the claims those of one table or figure; empty: all.
    """
    found = []
    for claim in grid.claims:
        if element not in ("", claim.element):
            continue
        cases = [case for case in grid.cases if claim.is_of(case.settings)]
        for scenario in dict.fromkeys(case.scenario for case in cases):
            mine = {row.method: row for row in rows if row.scenario == scenario}
            says = f"{claim.says} ({scenario})" if scenario else claim.says
            found.append(replace(_finding(claim, mine, grid), says=says))
    return found


def findings_table(found: Sequence[ClaimFinding]) -> str:
    """Return a line per claim as Markdown."""
    lines = ["| claim | verdict | because |", "|---|---|---|"]
    lines += [f"| {each.says} | *{each.standing}* | {each.reason} |" for each in found]
    return "\n".join(lines)


def _finding(claim: PaperClaim, rows: dict[str, Row], grid: Grid) -> ClaimFinding:
    columns = {column.key: column for column in COLUMNS}
    if claim.figure not in columns:
        raise ConfigError(f"claim {claim.says!r}: {unknown_name('figure', claim.figure, columns)}")
    column = columns[claim.figure]
    wanted = [*claim.methods, *([claim.other] if claim.other else [])]
    families = {name: _rows_of(name, rows) for name in wanted}
    absent = [name for name, theirs in families.items() if not theirs]
    if absent:
        return ClaimFinding(claim.says, Upshot.OPEN, f"no run of {', '.join(absent)} is recorded")
    best = {name: _best(theirs, column, claim) for name, theirs in families.items()}
    if not claim.other:
        return _beside_print(claim, column, [best[name] for name in claim.methods])
    other = best[claim.other]
    differences = [difference(best[name], column, other.runs) for name in claim.methods]
    words = "; ".join(
        f"{_said(best[name], families[name])} {found.text(column.digits)}"
        f"{_papers(claim, name, other, grid)}"
        for name, found in zip(claim.methods, differences, strict=True)
    )
    pairs = min(found.pairs for found in differences)
    reason = f"{column.title}, difference to {claim.other} over {pairs} pairs of runs: {words}"
    if pairs < 2:
        return ClaimFinding(claim.says, Upshot.OPEN, f"fewer than two pairs. {reason}")
    return ClaimFinding(claim.says, _standing(claim, differences, other, grid), reason)


def _rows_of(name: str, rows: Mapping[str, Row]) -> list[Row]:
    """Return a method's rows: one, or one of each value of what is swept.

    Those with fewer seeds than another are left out, so that none is the best by chance alone.
    """
    if name in rows:
        return [rows[name]]
    theirs = [row for row in rows.values() if row.runs[0].case.name == name]
    most = max((len(row.runs) for row in theirs), default=0)
    return [row for row in theirs if len(row.runs) == most]


def _best(rows: Sequence[Row], column: Column, claim: PaperClaim) -> Row:
    """Return the row with the best mean; one that has none comes last."""
    sign = -1 if claim.less_than else 1

    def goodness(row: Row) -> float:
        mean = sign * column.of(row).mean
        return -math.inf if math.isnan(mean) else mean

    return max(rows, key=goodness)


def _said(row: Row, family: Sequence[Row]) -> str:
    return f"{row.method} (best of {len(family)})" if len(family) > 1 else row.method


def _standing(
    claim: PaperClaim,
    differences: Sequence[Difference],
    other: Row,
    grid: Grid,
) -> Upshot:
    if claim.no_more_than:
        worse = any(found.low > 0 for found in differences)
        return Upshot.NOT_SEEN if worse else Upshot.HELD
    sign = 1 if claim.more_than else -1
    if any(sign * found.mean <= 0 for found in differences):
        return Upshot.NOT_SEEN
    sure = all(min(sign * found.low, sign * found.high) > 0 for found in differences)
    printed = [_paper_difference(claim, name, other, grid) for name in claim.methods]
    halved = any(
        abs(found.mean) < abs(papers) / 2
        for found, papers in zip(differences, printed, strict=True)
        if not math.isnan(papers)
    )
    return Upshot.HELD if sure and not halved else Upshot.WEAKER


def _paper_difference(claim: PaperClaim, method: str, other: Row, grid: Grid) -> float:
    """Return how far apart the paper prints the two; NaN where it does not."""
    figure = _PRINTED_AS.get(claim.figure, "")
    named = (replace(other, method=name) for name in (method, claim.other))
    one, two = (paper_of(row, grid).get(figure, math.nan) for row in named)
    return one - two


def _papers(claim: PaperClaim, method: str, other: Row, grid: Grid) -> str:
    apart = _paper_difference(claim, method, other, grid)
    return "" if math.isnan(apart) else f" (paper: {apart:+.3g})"


def _beside_print(claim: PaperClaim, column: Column, rows: Sequence[Row]) -> ClaimFinding:
    spreads = [column.of(row) for row in rows]
    near = all(abs(spread.mean - claim.printed) <= _SLACK for spread in spreads)
    words = "; ".join(
        f"{row.method} {spread.mean:.{column.digits}f}"
        for row, spread in zip(rows, spreads, strict=True)
    )
    reason = f"{column.title}: {words} (paper: {claim.printed:g})"
    return ClaimFinding(claim.says, Upshot.HELD if near else Upshot.NOT_SEEN, reason)
