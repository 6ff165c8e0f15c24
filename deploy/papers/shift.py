r"""Shift: the OT cost after one round beside a whole training, of two sites pulled apart.

    python -m deploy.papers.shift --shifts feature concept label --output ~/sweep

For every kind of shift, from none to the largest: the cost, its null, the weight divergence of
FedAvg over all rounds, and FedAvg's accuracy over training alone. Sites are synthetic, or hold
images that are turned, magnified or coloured. What was measured is not measured again.
"""

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from deploy.papers.experiment import experiment_parser, rank, write_page
from deploy.papers.pairs import (
    IMAGES,
    PAPER_TRAINING,
    PLAIN,
    Results,
    Scenario,
    change_to_local,
    mean_accuracy,
)
from server_app.report import drawing

SIZES = {
    "feature": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    "concept": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    "label": (0.0, 0.2, 0.4, 0.6, 0.8),
    **dict.fromkeys(IMAGES, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
}
MARKS = dict(zip(SIZES, "o^sDvP", strict=True))


@dataclass(frozen=True)
class ShiftedPair:
    """One pair of one seed."""

    kind: str
    size: float
    cost: float | None
    null: float | None
    divergence: float
    fedavg: float
    local: float
    change: float
    """Of FedAvg over local training, in per cent, the mean over both sites."""
    divergences: tuple[float, ...]
    """(rounds,) of FedAvg, the mean over both sites."""


def arguments() -> argparse.Namespace:
    """Return the command line's."""
    parser = experiment_parser(__doc__, seeds=5)
    parser.add_argument("--shifts", nargs="+", choices=SIZES, required=True)
    parser.add_argument("--as-paper", action="store_true", help="50 rounds of AdamW, not 20 of SGD")
    parser.add_argument("--minutes", type=float, default=1e9, help="start nothing after these")
    return parser.parse_args()


def measured(results: Results, kind: str, size: float, seed: int) -> ShiftedPair | None:
    """Measure one pair; None if time ran out."""
    # without a shift all synthetic kinds are one: what is none is measured once
    scenario = Scenario(kind if size or kind in IMAGES else "none", size, seed)
    cost = results.cost(scenario)
    fedavg, local = (results.run(scenario, trial) for trial in PLAIN)
    if cost is None or fedavg is None or local is None:
        return None
    return ShiftedPair(
        kind,
        size,
        cost["cost"],
        cost["null"],
        fedavg["divergence"],
        mean_accuracy(fedavg),
        mean_accuracy(local),
        change_to_local(fedavg, local),
        tuple(fedavg["divergences"]),
    )


def table(points: Sequence[ShiftedPair]) -> str:
    """Return one line per shift and size: means over seeds, deviations behind ±."""
    text = (
        "| shift | size | OT cost | null, 95 % | weight divergence | FedAvg (%) | alone (%) "
        "| change (%) |\n|---|---:|---:|---:|---:|---:|---:|---:|\n"
    )
    for kind, sizes in SIZES.items():
        for size in sizes:
            mine = [point for point in points if (point.kind, point.size) == (kind, size)]
            if not mine:
                continue
            columns = (
                _cell([point.cost for point in mine], 3),
                _cell([point.null for point in mine], 3),
                _cell([point.divergence for point in mine], 3),
                _cell([100 * point.fedavg for point in mine], 1),
                _cell([100 * point.local for point in mine], 1),
                _cell([point.change for point in mine], 1),
            )
            text += f"| {kind} | {size:g} | {' | '.join(columns)} |\n"
    return text


def _cell(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "none"
    some = "" if len(known) == len(values) else f" ({len(known)} of {len(values)})"
    return f"{np.mean(known):.{digits}f} ± {np.std(known):.{digits}f}{some}"


def correlations(points: Sequence[ShiftedPair]) -> str:
    """Return the cost's rank correlations, shift by shift."""
    text = "| shift | pairs | with size | with divergence | with FedAvg's change |\n"
    text += "|---|---:|---:|---:|---:|\n"
    for kind in SIZES:
        mine = [point for point in points if point.kind == kind and point.cost is not None]
        if not mine:
            continue
        costs = [point.cost for point in mine if point.cost is not None]
        cells = [
            rank(costs, [getattr(point, name) for point in mine])
            for name in ("size", "divergence", "change")
        ]
        text += f"| {kind} | {len(mine)} | {' | '.join(cells)} |\n"
    return text


def curves(points: Sequence[ShiftedPair]) -> Figure:
    """Draw weight divergence over the rounds, a panel per shift and a line per size."""
    kinds = list(dict.fromkeys(point.kind for point in points))
    figure = Figure(figsize=(drawing.WIDE, 3.4), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        for number, size in enumerate(SIZES[kind]):
            mine = [p.divergences for p in points if (p.kind, p.size) == (kind, size)]
            if mine:
                middle = np.mean(mine, axis=0)
                color = drawing.cluster_color(number)
                axes.plot(np.arange(1, len(middle) + 1), middle, color=color, label=f"{size:g}")
        axes.set_title(kind)
        axes.set_xlabel("round")
        axes.grid(visible=True)
    panels[0].set_ylabel("weight divergence, mean over sites and seeds")
    panels[-1].legend(title="size")
    return figure


def picture(points: Sequence[ShiftedPair]) -> Figure:
    """Draw weight divergence, and FedAvg's change over training alone, against the cost."""
    figure = Figure(figsize=(drawing.WIDE, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for number, kind in enumerate(SIZES):
        mine = [point for point in points if point.kind == kind and point.cost is not None]
        if not mine:
            continue
        costs = [point.cost for point in mine]
        for axes, name in zip(panels, ("divergence", "change"), strict=True):
            values = [getattr(point, name) for point in mine]
            style = {"s": 22, "marker": MARKS[kind], "color": drawing.cluster_color(number)}
            axes.scatter(costs, values, label=kind, alpha=0.8, **style)
    panels[0].set_ylabel("weight divergence, mean over rounds and sites")
    panels[1].set_ylabel("FedAvg over training alone (% change)")
    panels[1].axhline(0, color=drawing.GREY, lw=1)
    for axes in panels:
        axes.set_xlabel("OT cost after one round")
        axes.axvline(0.2, color=drawing.GREY, lw=1, ls=":")
        axes.axvline(0.3, color=drawing.GREY, lw=1, ls=":")
        axes.grid(visible=True)
    panels[0].legend(title="shift")
    return figure


def main() -> None:
    """Measure what is missing, and write page and picture."""
    args = arguments()
    logging.getLogger("coterie").addHandler(logging.NullHandler())  # no line per round
    training = PAPER_TRAINING if args.as_paper else {}
    results = Results(args.output, args.data_dir, args.minutes, training)
    points = [
        point
        for seed in range(args.seeds)
        for kind in args.shifts
        for size in SIZES[kind]
        if (point := measured(results, kind, size, seed))
    ]
    with drawing.style():
        document = drawing.svg(picture(points), "OT cost, divergence and gain")
        over_rounds = drawing.svg(curves(points), "Weight divergence over the rounds")
    write_page(args.output, f"{table(points)}\n{correlations(points)}", document)
    (args.output / "over-rounds.svg").write_text(over_rounds, encoding="utf-8")


if __name__ == "__main__":
    main()
