"""Pages: what all that are HTML share, one frame, one style, tables and pictures.

Templates are Python strings and not files of their own: Flower packs an app's Python files and a
few kinds of text, so a template file would be missing wherever the app arrives by ``flwr run``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import jinja2
from matplotlib.figure import Figure

from server_app.report import drawing

__all__ = ["STYLE", "Absence", "Fact", "PageTable", "Picture", "render"]

_UNFOLDED_ROWS = 25


@dataclass(frozen=True)
class Picture:
    """A drawn picture."""

    name: str
    """Of its file in ``plots/``, without ``.svg``."""
    title: str
    caption: str
    """One sentence: what to look for."""
    document: str
    """The SVG file's text."""
    element: str
    """The same as an ``<svg>`` element in the page's colours."""
    wide: bool
    values: str
    """What it shows in words and figures, for who does not see it."""

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        caption: str,
        figure: Figure,
        values: str,
        sites: Sequence[str] = (),
    ) -> Self:
        """Return a figure that was made, and is saved, inside :func:`drawing.style`.

        ``sites`` are those whose marks have the gids ``sites-<n>``, in their order.
        """
        document = drawing.with_titles(drawing.svg(figure, title), sites)
        wide = bool(figure.get_figwidth() > drawing.NARROW)
        return cls(name, title, caption, document, drawing.inline(document, name), wide, values)


@dataclass(frozen=True)
class PageTable:
    """Rows of text under a head; columns in ``words`` are aligned left, the others as numbers."""

    title: str
    head: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    words: frozenset[int] = frozenset()
    note: str = ""
    colors: tuple[str, ...] = ()
    """One per row as ``#rrggbb``, or none."""
    links: tuple[str, ...] = ()
    """Where each row's first cell leads, empty for nowhere; or none."""

    @property
    def folded(self) -> bool:
        """Whether the rows show only when asked for."""
        return len(self.rows) > _UNFOLDED_ROWS


@dataclass(frozen=True)
class Fact:
    """A figure of the first screen."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Absence:
    """A picture that cannot be drawn, and why."""

    title: str
    reason: str


def render(template: str, **values: Any) -> str:
    """Return a page; every text is escaped, only the pictures' elements are markup.

    Args:
        template: in Jinja's language; it extends ``frame`` and fills its blocks ``title``,
            ``style`` (after what all pages share) and ``body``, for which ``parts`` has macros.
        values: what the template speaks of.
    """
    environment = jinja2.Environment(
        loader=jinja2.DictLoader({"frame": _FRAME, "parts": _PARTS}),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(template).render(values)


STYLE = """\
:root {
  color-scheme: light dark;
  --ink: #1b1f24; --quiet: #59616b; --page: #f4f5f7; --card: #ffffff; --line: #d5d9de;
  --finished: #1a7f37; --failed: #b42318; --running: #8a5a00; --unknown: #59616b;
  --link: #0a5ea8;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e9ec; --quiet: #a3abb5; --page: #121417; --card: #1c1f24; --line: #3a4048;
    --finished: #57c878; --failed: #ff8f85; --running: #e3b341; --unknown: #a3abb5;
    --link: #79b8ff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 24px 20px 48px; max-width: 1180px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif;
}
h1 { font-size: 1.5rem; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 36px 0 12px; }
h3 { font-size: 1rem; margin: 0 0 6px; }
.badge {
  border: 1.5px solid; border-radius: 999px; padding: 1px 12px; font-size: .85rem;
  font-weight: 600; vertical-align: 3px; white-space: nowrap;
}
.finished { color: var(--finished); } .failed { color: var(--failed); }
.running, .interrupted { color: var(--running); } .unknown { color: var(--unknown); }
.lead { max-width: 95ch; margin: 8px 0 0; }
.error, .notes {
  background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--failed);
  border-radius: 4px; padding: 10px 14px; margin: 14px 0 0; overflow-wrap: anywhere;
}
.error pre { margin: 4px 0 0; white-space: pre-wrap; font-size: .9rem; }
.notes { border-left-color: var(--running); }
.facts {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); gap: 10px;
  margin: 20px 0 0;
}
.facts div {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px;
}
.facts dt { color: var(--quiet); font-size: .85rem; }
.facts dd { margin: 0; font-size: 1.35rem; font-weight: 600; }
.facts dd.note { color: var(--quiet); font-size: .8rem; font-weight: 400; line-height: 1.35; }
.pictures {
  display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px;
  grid-auto-flow: dense;
}
figure {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; margin: 0;
  padding: 14px 16px; min-width: 0;
}
figure.wide { grid-column: 1 / -1; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--quiet); font-size: .88rem; margin-top: 8px; }
.scroll {
  overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 4px 14px 8px;
}
table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td {
  text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: break-word;
}
tbody tr:last-child td { border-bottom: 0; }
th { color: var(--quiet); font-weight: 600; }
td.number, th.number {
  text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap;
}
.swatch {
  display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: 7px;
}
summary { cursor: pointer; padding: 6px 0; }
.quiet, .absent { color: var(--quiet); font-size: .9rem; }
nav ul { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 10px 0 0; padding: 0; }
nav li { list-style: none; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
@media screen and (max-width: 760px) {
  body { padding: 16px 10px 32px; }
  .facts { grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); }
  .pictures { grid-template-columns: minmax(0, 1fr); }
  figure { padding: 12px 10px; }
  .wide .drawing { overflow-x: auto; }
  .wide svg { width: 205%; }
  .wide figcaption::before { content: "It goes on to the right. "; }
}
@media print {
  @page { margin: 11mm 10mm; }
  body { background: none; padding: 0; font-size: 9px; max-width: none; }
  h1 { font-size: 16px; } h2 { font-size: 12px; margin: 12px 0 4px; } h3 { font-size: 10px; }
  .facts { grid-template-columns: repeat(6, 1fr); gap: 4px; margin-top: 8px; }
  .facts div { padding: 3px 6px; border-radius: 4px; }
  .facts dt, .facts dd.note { font-size: 8px; } .facts dd { font-size: 11px; }
  .pictures { gap: 6px; }
  figure { padding: 4px 8px; border-radius: 4px; } figcaption { font-size: 8px; margin-top: 2px; }
  table, .scroll table { font-size: 8px; } .quiet, .absent { font-size: 8px; }
  th, td { padding: 1px 8px 1px 0; }
  .scroll { overflow: visible; padding: 2px 6px; border-radius: 4px; }
  nav, .scroll:has(> details:not([open])) { display: none; }
  figure, tr, .facts div { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .swatch, svg { print-color-adjust: exact; }
}
"""

_FRAME = (
    """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{% block title %}{% endblock %}</title>
<style>
"""
    + STYLE
    + """\
{% block style %}
{% endblock %}
</style>
</head>
<body>
{% block body %}
{% endblock %}
</body>
</html>
"""
)
"""Loads nothing: a page opens offline, from wherever it was copied to."""

_PARTS = """\
{% macro table(content) %}
<table>
<thead><tr>
{% for name in content.head %}
<th scope="col"{% if loop.index0 not in content.words %} class="number"{% endif %}>{{ name }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in content.rows %}
{% set color = content.colors[loop.index0] if content.colors else "" %}
{% set link = content.links[loop.index0] if content.links else "" %}
<tr>
{%- for cell in row -%}
<td{% if loop.index0 not in content.words %} class="number"{% endif %}>
{%- if loop.first and color %}<span class="swatch" style="background:{{ color }}"></span>
{%- endif %}{% if loop.first and link %}<a href="{{ link }}">{{ cell }}</a>{% else %}{{ cell }}
{%- endif %}</td>
{%- endfor -%}
</tr>
{% endfor %}
</tbody>
</table>
{% endmacro %}

{% macro scrolled(content, name="") %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ name or content.title }}, a table">
{{ table(content) }}
</div>
{% endmacro %}

{% macro navigation(links) %}
{% if links %}
<nav aria-label="Pages of this run"><ul>
{% for words, target in links %}
<li><a href="{{ target }}">{{ words }}</a></li>
{% endfor %}
</ul></nav>
{% endif %}
{% endmacro %}

{% macro drawn(picture) %}
<figure{% if picture.wide %} class="wide"{% endif %}>
<h3>{{ picture.title }}</h3>
<div class="drawing" role="img" aria-label="{{ picture.title }}. {{ picture.values }}"
{%- if picture.wide %} tabindex="0"{% endif %}>
{{ picture.element | safe }}
</div>
<figcaption>{{ picture.caption }}</figcaption>
</figure>
{% endmacro %}

{% macro gallery(pictures) %}
<div class="pictures">
{% for picture in pictures %}
{{ drawn(picture) }}
{% endfor %}
</div>
{% endmacro %}

{% macro sections(tables) %}
{% for content in tables %}
<section>
<h2>{{ content.title }}</h2>
{% if content.note %}
<p class="quiet">{{ content.note }}</p>
{% endif %}
{% if content.rows and content.folded %}
<div class="scroll"><details><summary>Show {{ content.rows | length }} rows</summary>
{{ table(content) }}
</details></div>
{% elif content.rows %}
{{ scrolled(content) }}
{% endif %}
</section>
{% endfor %}
{% endmacro %}
"""
