"""A run's pictures: arrays in, matplotlib figures out, SVG text at the end.

Figures are made and saved inside :func:`style`; neither pyplot nor a backend is chosen, so drawing
changes nothing for whoever calls. The same arrays give the same bytes. A cluster has one colour in
every picture. Matrices are embedded as one pixel per entry, so a picture of a thousand sites and a
thousand rounds stays small.
"""

import contextlib
import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.colors
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy.cluster import hierarchy

from server_app.record.fairness import worst_tenth
from server_app.record.recorded_run import FloatArray, IntArray, OrderedSites

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colorbar import Colorbar

INK = "#1b1f24"
"""Of text, axes and overall curves; :func:`inline` lets the page choose it."""
PAPER = "#fefefe"
"""Behind a picture; :func:`inline` lets the page choose it."""
GREY = "#8a9099"
"""Of what belongs to no cluster; readable on light and on dark."""

_TAB20 = matplotlib.colormaps["tab20"]
# Okabe and Ito, "Color Universal Design" (2008), without black and with yellow last, as it is faint
# on white; then what tab20 has that differs from these and from grey.
_PALETTE = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"),
    *(matplotlib.colors.to_hex(_TAB20(index)) for index in (8, 10, 16, 7, 5, 18, 13, 3, 9, 11, 1)),
)
_MARKERS = "osD^vP<X>p*"
NARROW, WIDE = 5.6, 11.5  # inches; the page shows two narrow pictures or a wide one side by side
_NAMED_SITES = 40  # with more, an axis names clusters
_NAMED_POINTS = 25
_NAMED_CLUSTERS = 12  # longest legend
_SEPARATE_MODELS = 20  # with more, the models' curves become a band
_VECTOR_MARKS = 2000  # more marks are drawn as an image
TREE_SITES = 300
"""With as many, a dendrogram's branches run into each other, and SciPy's recursion is too deep."""
_BARS = 60  # with more sites, a histogram

_STYLE: Any = {  # matplotlib spells out every key, and the list differs by version
    "svg.hashsalt": "coterie",  # ids inside the SVG: the same every time
    "svg.fonttype": "none",  # text stays text: small, searchable, read aloud
    "text.parse_math": False,  # a site may be called $x$
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "image.interpolation": "none",  # one pixel per entry, scaled by the viewer
    "legend.frameon": False,
    "legend.fontsize": 8,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
    ),
    "grid.color": GREY,
    "axes.facecolor": "none",
    "figure.facecolor": PAPER,
}


def style() -> contextlib.AbstractContextManager[None]:
    """Return the context in which figures are made and saved."""
    return matplotlib.rc_context(_STYLE)


def svg(figure: Figure, title: str) -> str:
    """Return a figure as an SVG document that carries a title."""
    buffer = io.StringIO()
    unstamped = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with warnings.catch_warnings():
        # The viewer draws the text, so letters that our own font lacks are no problem.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure.savefig(buffer, format="svg", metadata=unstamped | {"Title": title})
    return buffer.getvalue()


def inline(document: str, name: str) -> str:
    """Return the ``<svg>`` element for a page: in the page's colours, with ids of its own."""
    element = document[document.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{name}-", element)
    return element.replace(INK, "currentColor").replace(PAPER, "none")


def cluster_color(cluster: int) -> str:
    """Return a cluster's colour as ``#rrggbb``; grey for -1, which is no cluster."""
    return GREY if cluster < 0 else _PALETTE[cluster % len(_PALETTE)]


def short(text: str, length: int = 18) -> str:
    """Return a text that fits beside an axis, without what XML cannot hold."""
    printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return printable if len(printable) <= length else printable[: length - 1] + "…"


def progress(
    rounds: IntArray, accuracy: FloatArray, loss: FloatArray, train_loss: FloatArray
) -> Figure:
    """Return curves over rounds (T,): accuracy in percent beside losses in nats.

    ``accuracy`` and ``loss`` are (1 + m, T): row 0 over all sites, then one row per model, or no
    more rows. NaN leaves a gap.
    """
    figure = Figure(figsize=(WIDE, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _curves(left, rounds, 100 * accuracy, "all sites")
    _mark_best(left, rounds, 100 * accuracy[0])
    _curves(right, rounds, loss, "held-out rows, all sites")
    dots = "o" if len(rounds) == 1 else ""
    right.plot(rounds, train_loss, ":", marker=dots, ms=3, color=INK, lw=1, label="training rows")
    left.set_ylabel("accuracy (%)")
    right.set_ylabel("loss (nats)")
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
            named = f"model {index}" if len(models) <= _NAMED_CLUSTERS else None
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


def _mark_best(axes: "Axes", rounds: IntArray, accuracy: FloatArray) -> None:
    if np.isfinite(accuracy).any():
        best = int(np.nanargmax(accuracy))
        label = f"best: {accuracy[best]:.1f} % in round {rounds[best]}"
        axes.plot(rounds[best], accuracy[best], "*", ms=11, color=cluster_color(5), label=label)


def round_axis(axes: "Axes", rounds: IntArray) -> None:
    """Let the x axis count rounds (T,)."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if len(rounds) == 1:  # else the ticks of a single point are fractions of a round
        axes.set_xlim(rounds[0] - 0.5, rounds[0] + 0.5)


def label_shares(shares: FloatArray, sites: OrderedSites) -> Figure:
    """Return a heat map of label shares (n, K) in [0, 1], one row per site."""
    figure = Figure(figsize=(NARROW, _height(sites) + 0.9), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, aspect="auto", cmap="cividis", vmin=0)
    _bar(figure.colorbar(image, ax=axes, pad=0.02), "share of the site's rows")
    axes.set_xlabel("class")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _site_rows(axes, sites, "white", 0.8 * NARROW)
    return figure


def dissimilarities(distances: FloatArray, sites: OrderedSites, metric: str) -> Figure:
    """Return a heat map of distances (n, n); what is not finite stays empty."""
    figure = Figure(figsize=(NARROW, _height(sites) + 0.9), layout="constrained")
    axes = figure.subplots()
    shown = np.ma.masked_invalid(distances)
    image = axes.imshow(shown, aspect="auto", cmap="viridis", vmin=0)
    _bar(figure.colorbar(image, ax=axes, pad=0.02), short(f"dissimilarity ({metric})", 50))
    axes.set_xlabel("the same sites, in the same order")
    axes.set_xticks([])
    _site_rows(axes, sites, "white", 0.8 * NARROW)
    for start in sites.starts[1:-1]:
        axes.axvline(start - 0.5, color="white", lw=_boundary_width(sites))
    return figure


def _height(sites: OrderedSites) -> float:
    """Return the inches that the rows need."""
    return min(max(0.17 * len(sites.names), 1.8), 5.0)


def _title(sites: OrderedSites) -> str:
    order = "ordered by cluster" if sites.grouped else "by name"
    return f"{len(sites.names)} sites, {order}"


def _bar(bar: "Colorbar", label: str) -> None:
    bar.set_label(label)
    bar.outline.set_visible(False)


def _site_rows(axes: "Axes", sites: OrderedSites, boundary: str, width: float) -> None:
    """Name the rows, draw the lines between clusters and, beside them, the clusters' colours.

    ``width`` is that of the axes, roughly, in inches.
    """
    axes.spines[:].set_visible(False)
    axes.set_ylabel(_title(sites))
    _name_sites(axes.yaxis, sites)
    axes.set_ylim(len(sites.names) - 0.5, -0.5)
    if not sites.grouped:
        return
    axes.tick_params(axis="y", length=0, pad=11)
    strip = axes.inset_axes((-0.1 / width, 0, 0.07 / width, 1))
    strip.imshow(_colors(sites.clusters)[:, np.newaxis], aspect="auto")
    strip.set_axis_off()
    for start in sites.starts[1:-1]:
        axes.axhline(start - 0.5, color=boundary, lw=_boundary_width(sites))


def _name_sites(axis: "Axis", sites: OrderedSites) -> None:
    if len(sites.names) <= _NAMED_SITES:
        axis.set_ticks(range(len(sites.names)), [short(name) for name in sites.names])
        axis.set_tick_params(labelsize=7)
        return
    begins, ends = sites.starts[:-1], sites.starts[1:]
    # The name of a cluster that fills less than this would run into its neighbour's.
    wide = ends - begins >= len(sites.names) / _NAMED_SITES
    middles = ((begins + ends - 1) / 2)[wide]
    clusters = sites.clusters[begins[wide]]
    names = [f"cluster {cluster}" if cluster >= 0 else "no cluster" for cluster in clusters]
    axis.set_ticks(middles if sites.grouped else [], names if sites.grouped else [])


def _boundary_width(sites: OrderedSites) -> float:
    return 1.4 if len(sites.starts) <= 2 * _NAMED_CLUSTERS else 0.3


def _colors(clusters: IntArray) -> npt.NDArray[np.uint8]:
    """Return the (n, 4) RGBA colours of clusters (n,)."""
    known, places = np.unique(clusters, return_inverse=True)
    colors = [matplotlib.colors.to_rgba(cluster_color(int(cluster))) for cluster in known]
    return np.asarray(np.round(255 * np.array(colors)), dtype=np.uint8)[places]


def principal_components(descriptors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return coordinates (n, 2) on the first two principal components, and their shares (2,).

    The shares, in [0, 1], are the parts of the total variance. A component that does not exist is
    zero. Of a component's two directions, the one in which its largest loading is positive.
    """
    centred = descriptors - descriptors.mean(axis=0)
    left, scale, right = np.linalg.svd(centred, full_matrices=False)
    largest = np.abs(right).argmax(axis=1)
    signs = np.where(right[np.arange(len(right)), largest] < 0, -1.0, 1.0)
    points = np.zeros((len(descriptors), 2))
    variance = np.zeros(2)
    # Below this, a singular value is what rounding leaves of a zero.
    negligible = np.linalg.norm(descriptors) * max(centred.shape) * np.finfo(float).eps
    kept = min(2, int((scale > negligible).sum()))
    points[:, :kept] = (left * scale * signs)[:, :kept]
    variance[:kept] = scale[:kept] ** 2
    return points, variance / (scale**2).sum() if kept else variance


def components(points: FloatArray, shares: FloatArray, sites: OrderedSites) -> Figure:
    """Return the sites at (n, 2) coordinates; ``shares`` (2,) are of the total variance."""
    figure = Figure(figsize=(NARROW, 4.2), layout="constrained")
    axes = figure.subplots()
    for begin, end in zip(sites.starts[:-1], sites.starts[1:], strict=True):
        cluster = int(sites.clusters[begin])
        name = f"cluster {cluster} ({end - begin})" if cluster >= 0 else f"none ({end - begin})"
        marker = _MARKERS[cluster % len(_MARKERS)]
        color = cluster_color(cluster)
        x, y = points[begin:end].T
        axes.plot(x, y, marker, ms=6, mew=0, color=color, label=name, alpha=0.85)
    if len(sites.names) <= _NAMED_POINTS:
        _name_points(axes, points, sites)
    axes.set_aspect("equal", adjustable="datalim")  # distances mean the same both ways
    axes.set_xlabel(f"1st component ({100 * shares[0]:.0f} % of the variance)")
    axes.set_ylabel(f"2nd component ({100 * shares[1]:.0f} % of the variance)")
    axes.grid(visible=True)
    if len(sites.starts) - 1 <= _NAMED_CLUSTERS and sites.grouped:
        figure.legend(loc="outside lower center", ncols=4)
    return figure


def _name_points(axes: "Axes", points: FloatArray, sites: OrderedSites) -> None:
    """Name each site whose name would not cover an earlier one."""
    span = np.maximum(np.ptp(points, axis=0), np.finfo(float).tiny)
    named = np.empty((0, 2))
    for name, place in zip(sites.names, points, strict=True):
        gaps = np.abs(named - place) / span
        if not np.any((gaps[:, 0] < 0.2) & (gaps[:, 1] < 0.045)):
            named = np.vstack([named, place])
            look: dict[str, Any] = {"xytext": (5, 3), "textcoords": "offset points", "fontsize": 7}
            axes.annotate(short(name, 12), (place[0], place[1]), **look)


def dendrogram(linkage: FloatArray, sites: OrderedSites) -> Figure:
    """Return the merges (n-1, 4) of n >= 2 sites as a tree; one colour inside a cluster."""
    tree = hierarchy.dendrogram(
        linkage, no_plot=True, link_color_func=_branch_colors(linkage, sites.clusters)
    )
    figure = Figure(figsize=(WIDE, 3.8), layout="constrained")
    axes = figure.subplots()
    branches = zip(tree["icoord"], tree["dcoord"], tree["color_list"], strict=True)
    for across, heights, color in branches:
        axes.plot(across, heights, color=color, lw=1.2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("height of the merge")
    names = [short(sites.names[leaf]) for leaf in hierarchy.leaves_list(linkage)]
    if len(names) <= 2 * _NAMED_SITES:
        axes.set_xticks(10 * np.arange(len(names)) + 5, names)  # where SciPy puts the leaves
        axes.tick_params(axis="x", labelrotation=90, labelsize=7, length=0)
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(names)} sites")
    return figure


def _branch_colors(linkage: FloatArray, clusters: IntArray) -> Callable[[int], str]:
    """Return merge number -> its cluster's colour, grey where it joins several clusters."""
    inside = clusters.tolist()
    for left, right in linkage[:, :2].astype(int).tolist():
        inside.append(inside[left] if inside[left] == inside[right] else -1)
    return lambda merge: cluster_color(inside[merge])


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


IDLE, TRAINED, REJECTED, MISSING = range(4)
"""What a site did in a round, as :func:`participation` takes it."""


def participation(doings: npt.NDArray[np.int8], rounds: IntArray, sites: OrderedSites) -> Figure:
    """Return who trained when: ``doings`` (n, T), one row per site, one column per round."""
    figure = Figure(figsize=(WIDE, _height(sites) + 1.1), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[4, 1])
    trained = doings == TRAINED
    pixels = np.where(trained[..., np.newaxis], _colors(sites.clusters)[:, np.newaxis], 0)
    edges = (rounds[0] - 0.5, rounds[-1] + 0.5, len(sites.names) - 0.5, -0.5)
    left.imshow(pixels.astype(np.uint8), aspect="auto", extent=edges)
    _marks(left, doings == REJECTED, rounds, "x", "reply rejected")
    _marks(left, doings == MISSING, rounds, "o", "no reply")
    _site_rows(left, sites, GREY, 0.7 * WIDE)
    round_axis(left, rounds)
    left.spines[:].set_visible(True)
    if np.any(doings >= REJECTED):
        figure.legend(loc="outside lower left", ncols=2)
    _counts(right, trained.sum(axis=1), sites)
    return figure


def _marks(
    axes: "Axes", where: npt.NDArray[np.bool_], rounds: IntArray, marker: str, label: str
) -> None:
    rows, columns = np.nonzero(where)
    if len(rows) == 0:
        return
    many = len(rows) > _VECTOR_MARKS
    look: dict[str, Any] = {"color": GREY if many else INK, "mfc": "none", "rasterized": many}
    axes.plot(rounds[columns], rows, marker, ms=2 if many else 4, label=label, **look)


def _counts(axes: "Axes", counts: IntArray, sites: OrderedSites) -> None:
    colors = [cluster_color(int(cluster)) for cluster in sites.clusters]
    gap = 0.2 if len(sites.names) <= _NAMED_SITES else 0.0
    axes.barh(range(len(sites.names)), counts, height=1 - gap, color=colors, lw=0)
    axes.set_ylim(len(sites.names) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xlabel("rounds trained")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, min_n_ticks=1))


def accuracy_spread(accuracy: FloatArray, names: list[str], clusters: IntArray) -> Figure:
    """Return the sites' accuracies (n,) in [0, 1]: sorted bars, or a histogram of many sites."""
    figure = Figure(figsize=(NARROW, 3.8), layout="constrained")
    axes = figure.subplots()
    percent = 100 * accuracy
    if len(names) <= _BARS:
        line: Callable[..., object] = axes.axhline
        _sorted_bars(axes, percent, names, clusters)
    else:
        line = axes.axvline
        axes.hist(percent, bins=20, color=cluster_color(0), alpha=0.8)
        axes.set_xlabel("accuracy (%)")
        axes.set_ylabel("sites")
    mean, worst = float(percent.mean()), worst_tenth(percent)
    line(mean, color=INK, lw=1.2, label=f"mean of the sites: {mean:.1f} %")
    line(worst, color=INK, lw=1.2, ls="--", label=f"worst tenth: {worst:.1f} %")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _sorted_bars(axes: "Axes", percent: FloatArray, names: list[str], clusters: IntArray) -> None:
    order = np.argsort(percent, kind="stable")
    colors = [cluster_color(int(cluster)) for cluster in clusters[order]]
    axes.bar(range(len(names)), percent[order], color=colors)
    axes.set_ylabel("accuracy (%)")
    if len(names) <= _NAMED_SITES:
        axes.set_xticks(range(len(names)), [short(names[place]) for place in order])
        axes.tick_params(axis="x", labelrotation=90, labelsize=7, length=0)
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(names)} sites, from worst to best")


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


def byte_size(count: float) -> str:
    """Return a number of bytes in words, in steps of 1000: ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def joules_in_words(joules: float) -> str:
    """Return an energy in words, in steps of 1000: ``12.3 kJ``."""
    for unit in ("J", "kJ", "MJ"):
        if abs(joules) < 999.5:
            return f"{joules:.3g} {unit}"
        joules /= 1000
    return f"{joules:,.3g} GJ"
