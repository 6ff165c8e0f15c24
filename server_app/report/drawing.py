"""Drawing: the style that all pictures share, and figures as SVG text.

Figures are made and saved inside :func:`style`; neither pyplot nor a backend is chosen, so drawing
changes nothing for whoever calls. The same arrays give the same bytes. A cluster has one colour in
every picture.
"""

import contextlib
import io
import re
import warnings
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.colors
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from server_app.record.recorded_run import IntArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "GREY",
    "INK",
    "NAMED_CLUSTERS",
    "NARROW",
    "PAPER",
    "WIDE",
    "cluster_color",
    "inline",
    "round_axis",
    "short",
    "style",
    "svg",
]

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
NARROW, WIDE = 5.6, 11.5  # inches; the page shows two narrow pictures or a wide one side by side
NAMED_CLUSTERS = 12
"""Longest legend."""

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


def round_axis(axes: "Axes", rounds: IntArray) -> None:
    """Let the x axis count rounds (T,)."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if len(rounds) == 1:  # else the ticks of a single point are fractions of a round
        axes.set_xlim(rounds[0] - 0.5, rounds[0] + 0.5)
