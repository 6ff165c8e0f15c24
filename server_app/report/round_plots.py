"""Round plots: a run's curves over rounds and over numbers of clusters; arrays in, figures out."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from common.tasks.contract import ScoreAxis
from server_app.record.recorded_run import FloatArray, IntArray
from server_app.report.drawing import INK, NAMED_CLUSTERS, NARROW, WIDE, cluster_color, round_axis
from server_app.report.words import byte_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["progress", "silhouettes", "traffic"]

_SEPARATE_MODELS = 20  # with more, the models' curves become a band


def progress(
    rounds: IntArray,
    score: FloatArray,
    loss: FloatArray,
    train_loss: FloatArray,
    axis: ScoreAxis,
    unit: str,
) -> Figure:
    """Return curves over rounds (T,): scores on their axis beside losses in a unit.

    ``score`` and ``loss`` are (1 + m, T): row 0 over all sites, then one row per model, or no
    more rows. NaN leaves a gap.
    """
    figure = Figure(figsize=(WIDE, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _curves(left, rounds, axis.factor * score, "all sites")
    _mark_best(left, rounds, score[0], axis)
    _curves(right, rounds, loss, "held-out rows, all sites")
    dots = "o" if len(rounds) == 1 else ""
    right.plot(rounds, train_loss, ":", marker=dots, ms=3, color=INK, lw=1, label="training rows")
    left.set_ylabel(axis.label)
    right.set_ylabel(f"loss ({unit})")
    for axes in (left, right):
        round_axis(axes, rounds)
        axes.grid(visible=True)
        axes.legend(loc="best", ncols=2)
    return figure


def _curves(axes: "Axes", rounds: IntArray, rows: FloatArray, name: str) -> None:
    marker = "o" if len(rounds) <= 30 else ""
    models = rows[1:]
    if len(models) > _SEPARATE_MODELS:
        _band(axes, rounds, models)
    else:
        for index, values in enumerate(models):
            named = f"model {index}" if len(models) <= NAMED_CLUSTERS else None
            axes.plot(
                rounds, values, marker=marker, ms=2, lw=1, color=cluster_color(index), label=named
            )
    axes.plot(rounds, rows[0], marker=marker, ms=3, lw=2, color=INK, label=name)


def _band(axes: "Axes", rounds: IntArray, models: FloatArray) -> None:
    seen = np.isfinite(models).any(axis=0)
    quantiles = np.full((3, len(rounds)), np.nan)
    if seen.any():
        quantiles[:, seen] = np.nanpercentile(models[:, seen], [10, 50, 90], axis=0)
    low, middle, high = quantiles
    color = cluster_color(0)
    label = f"{len(models)} models, 10th to 90th percentile"
    axes.fill_between(rounds, low, high, color=color, alpha=0.25, lw=0, label=label)
    axes.plot(rounds, middle, color=color, lw=1, label="median model")


def _mark_best(axes: "Axes", rounds: IntArray, score: FloatArray, axis: ScoreAxis) -> None:
    if np.isfinite(score).any():
        best = int(np.nanargmax(score))
        label = f"best: {axis.words(score[best])} in round {rounds[best]}"
        place = axis.factor * score[best]
        axes.plot(rounds[best], place, "*", ms=11, color=cluster_color(5), label=label)


def silhouettes(
    numbers: IntArray, scores: FloatArray, chosen: int, unit: str = "mean silhouette (-1 to 1)"
) -> Figure:
    """Return the scores of numbers of clusters, mean silhouettes unless said otherwise."""
    figure = Figure(figsize=(NARROW, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(numbers, scores, "o-", ms=4, color=cluster_color(0))
    hit = numbers == chosen
    axes.axvline(chosen, color=cluster_color(5), lw=0.8, ls="--", label=f"chosen: {chosen}")
    axes.plot(numbers[hit], scores[hit], "*", ms=15, color=cluster_color(5))
    axes.set_xlabel("number of clusters")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(visible=True)
    axes.legend()
    return figure


def traffic(rounds: IntArray, down: FloatArray, up: FloatArray) -> Figure:
    """Return the bytes (T,) of each round to the sites and, on top, from the sites."""
    figure = Figure(figsize=(NARROW, 3.8), layout="constrained")
    axes = figure.subplots()
    edges = np.append(rounds - 0.5, rounds[-1] + 0.5)
    down, up = np.nan_to_num(down), np.nan_to_num(up)
    axes.stairs(down, edges, fill=True, color=cluster_color(0), label="to the sites")
    axes.stairs(
        down + up, edges, baseline=down, fill=True, color=cluster_color(1), label="from the sites"
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: byte_size(value)))
    axes.set_ylabel("bytes per round")
    axes.grid(visible=True, axis="y")
    round_axis(axes, rounds)
    figure.legend(loc="outside lower center", ncols=2)
    return figure
