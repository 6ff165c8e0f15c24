"""Picture of the rooms and their floors, drawn from the code's imports.

python docs/draw_architecture.py
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "tests"))  # where the plan lies

import plan  # noqa: E402

PICTURE = FOLDER / "images" / "architecture.svg"

_WIDTH = 1400
_MARGIN, _PAD, _GAP = 24, 22, 26  # around panels, inside them, between floors
_TITLE, _LINE, _LETTER = 34, 16, 6.9  # heights, and the width of a letter of a file's name
_WIDEST = 560  # box
_LANE = 16  # beside the boxes, for an arrow that passes a floor
_COLOURS = {
    "deploy": ("#f6ecd9", "#8a6215"),
    "server_app": ("#e3edf7", "#1f5582"),
    "client_app": ("#e4f2e7", "#256b39"),
    "common": ("#efe8f4", "#5f3b7d"),
}


@dataclass(frozen=True)
class Box:
    """A room's place in the picture; ``files`` are lines of names."""

    room: str
    files: tuple[str, ...]
    x: float
    y: float
    width: float

    @property
    def height(self) -> float:
        """From its upper to its lower edge."""
        return _TITLE + _LINE * len(self.files) - (0 if self.files else 2)

    @property
    def middle(self) -> float:
        """Of its width."""
        return self.x + self.width / 2


def downward() -> dict[str, set[str]]:
    """Return the rooms that each room imports from, by the order of the plan."""
    floor = {room: place for place, room in enumerate(plan.ORDER)}
    found: dict[str, set[str]] = {room: set() for room in plan.ORDER}
    for above, below in plan.room_imports():
        if floor[above] > floor[below]:
            found[above].add(below)
    return found


def drawn_arrows(arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the arrows within packages, without those that follow from others.

    >>> arrows = {"p/a": set(), "p/b": {"p/a"}, "p/c": {"p/a", "p/b"}}
    >>> drawn_arrows(arrows)["p/c"]
    {'p/b'}
    """
    reached: dict[str, set[str]] = {}
    drawn = {}
    for room, targets in arrows.items():  # the lowest first
        inside = {target for target in targets if package_of(target) == package_of(room)}
        drawn[room] = {each for each in inside if not any(each in reached[x] for x in inside)}
        reached[room] = inside.union(*(reached[target] for target in inside))
    return drawn


def floors(arrows: Mapping[str, set[str]]) -> dict[str, int]:
    """Return each room's floor in its package: one above the highest room that it imports from."""
    found: dict[str, int] = {}
    for room, targets in arrows.items():
        inside = [found[each] for each in targets if package_of(each) == package_of(room)]
        found[room] = 1 + max(inside, default=-1)
    return found


def package_of(room: str) -> str:
    """Return the package that a room lies in."""
    return room.partition("/")[0]


def names_in(room: str) -> list[str]:
    """Return the files of a room, without their ending; none where the room is a file."""
    mine = [path for path in plan.sources() if plan.room_of(path) == room]
    names = [path.stem for path in mine if path.name != "__init__.py"]
    return [] if (plan.ROOT / f"{room}.py").exists() else names


def picture() -> str:
    """Return the SVG file's text."""
    arrows = downward()
    half = (_WIDTH - 3 * _MARGIN) * 0.36
    top, deploy = panel("deploy", _MARGIN, _MARGIN, _WIDTH - 2 * _MARGIN, arrows)
    middle = top + 2 * _GAP
    left = panel("client_app", _MARGIN, middle, half, arrows)
    right = panel(
        "server_app", half + 2 * _MARGIN, middle, _WIDTH - half - 3 * _MARGIN, arrows, left[0]
    )
    if right[0] > left[0]:
        left = panel("client_app", _MARGIN, middle, half, arrows, right[0])
    low = right[0] + 2 * _GAP
    bottom, common = panel("common", _MARGIN, low, _WIDTH - 2 * _MARGIN, arrows)
    client, server = _MARGIN + half / 2, (half + _WIDTH + _MARGIN) / 2
    between = [
        _thick(client, top, middle),
        _thick(server, top, middle),
        _thick(client, right[0], low),
        _thick(server, right[0], low),
    ]
    parts = [*deploy, *left[1], *right[1], *common, *between]
    height = bottom + _MARGIN
    return "\n".join([_HEAD.format(width=_WIDTH, height=round(height)), *parts, "</svg>", ""])


def panel(
    package: str,
    x: float,
    y: float,
    width: float,
    arrows: Mapping[str, set[str]],
    end: float = 0,
) -> tuple[float, list[str]]:
    """Return where a package's panel ends, at least at ``end``, and what it is drawn of."""
    level = floors(arrows)
    rooms = [room for room in plan.ORDER if package_of(room) == package]
    boxes: dict[str, Box] = {}
    top = y + _TITLE + 6
    for floor in sorted({level[room] for room in rooms}, reverse=True):
        row = [room for room in rooms if level[room] == floor]
        placed = _row(row, x + _PAD + 2 * _LANE, top, width - 2 * _PAD - 4 * _LANE)
        boxes |= {box.room: box for box in placed}
        top += max(box.height for box in placed) + _GAP
    bottom = max(top - _GAP + _PAD, end)
    fill, ink = _COLOURS[package]
    parts = [
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{bottom - y:.0f}" rx="10" '
        f'fill="{fill}"/>',
        _text(x + _PAD, y + 28, f"{package}/", 20, ink, bold=True),
    ]
    drawn = drawn_arrows(arrows)
    lanes = iter(range(1, len(rooms) ** 2))
    for room in rooms:
        for target in sorted(drawn[room], key=plan.ORDER.index):
            near = level[room] - level[target] == 1
            lane = 0 if near else next(lanes)
            parts.append(_arrow(boxes[room], boxes[target], ink, x + width - _PAD, lane))
    return bottom, parts + [part for box in boxes.values() for part in _drawn(box, ink)]


def _row(rooms: list[str], x: float, y: float, width: float) -> list[Box]:
    """Return the boxes of a floor, side by side in the middle."""
    each = min(_WIDEST, (width - _GAP * (len(rooms) - 1)) / len(rooms))
    start = x + (width - each * len(rooms) - _GAP * (len(rooms) - 1)) / 2
    return [
        Box(room, _lines(names_in(room), each), start + place * (each + _GAP), y, each)
        for place, room in enumerate(rooms)
    ]


def _lines(names: Iterable[str], width: float) -> tuple[str, ...]:
    letters = int((width - 24) / _LETTER)
    return tuple(wrap(", ".join(names), letters, break_on_hyphens=False))


def _drawn(box: Box, ink: str) -> list[str]:
    is_file = (plan.ROOT / f"{box.room}.py").exists()
    title = box.room.rpartition("/")[2] + (".py" if is_file else "/")
    if box.room in plan.PACKAGES:
        title = f"in {title} itself"
    return [
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" '
        f'rx="6" fill="#ffffff" stroke="{ink}" stroke-width="1.5"/>',
        _text(box.x + 12, box.y + 21, title, 15, ink, bold=True),
        *(
            _text(box.x + 12, box.y + 21 + _LINE * (place + 1), line, 12.5, "#333333")
            for place, line in enumerate(box.files)
        ),
    ]


def _arrow(above: Box, below: Box, ink: str, edge: float, lane: int) -> str:
    """Return the arrow from a room to one that it imports from; in a lane if it passes a floor."""
    if not lane:
        start, end = above.y + above.height, below.y - 2
        points = [(above.middle, start), (above.middle, start + 10)]
        points += [(below.middle, start + 10), (below.middle, end)]
    else:
        far, beside = edge - _LANE / 2 - _LANE * (lane - 1), below.middle + 3 * _LANE
        start, turn = above.y + above.height / 2, below.y - 9
        points = [(above.x + above.width, start), (far, start), (far, turn)]
        points += [(beside, turn), (beside, below.y - 2)]
    path = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="1.6" '
        'marker-end="url(#head)"/>'
    )


def _thick(x: float, start: float, end: float) -> str:
    return (
        f'<polyline points="{x:.0f},{start:.0f} {x:.0f},{end - 4:.0f}" fill="none" '
        'stroke="#555555" stroke-width="4" marker-end="url(#head)"/>'
    )


def _text(x: float, y: float, words: str, size: float, ink: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.0f}" y="{y:.0f}" font-size="{size:g}" fill="{ink}"{weight}'
    return f"<text {place}>{escape(words)}</text>"


_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
font-family="DejaVu Sans, Verdana, sans-serif">
<!-- Made by docs/draw_architecture.py from the code's imports. -->
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" \
orient="auto"><path d="M 0 0 L 10 5 L 0 10 z" fill="#444444"/></marker></defs>
<rect width="{width}" height="{height}" fill="#ffffff"/>"""


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
