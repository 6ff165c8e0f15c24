"""Template of the precheck's page."""

TEMPLATE = """\
{% extends "frame" %}
{% from "parts" import drawn, gallery, navigation, sections %}
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
.group.plain { border-left: 0; padding-left: 0; margin-top: 0; }
.left li { margin: 0 0 9px; line-height: 1.4; }
.left li::first-letter { text-transform: uppercase; }
.dots { margin: 0; padding-left: 1.1em; font-size: .9rem; }
.small { font-size: .85rem; color: var(--quiet); }
.card p { margin: 4px 0; }
.matrix td, .matrix th { padding: 6px 10px; border: 1px solid var(--line); text-align: center; }
.matrix td b { display: block; font-size: 1rem; white-space: nowrap; }
.matrix td { font-size: .78rem; }
.matrix th { overflow-wrap: anywhere; min-width: 6em; }
@media screen and (max-width: 860px) { .columns { grid-template-columns: minmax(0, 1fr); } }
@media screen and (max-width: 560px) {
  .group li { grid-template-columns: minmax(0, 1fr) auto; }
  .group li > span:last-child { grid-column: 1 / -1; }
}
figure + .card { margin-top: 12px; }
.next { margin: 12px 0; border-left: 4px solid var(--link); }
.next h2 { margin: 0 0 4px; font-size: 1.05rem; }
.next pre { margin: 4px 0 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
.on-paper { display: none; }
@media print {
  .chip, td { print-color-adjust: exact; }
  .detail { display: none; } .on-paper { display: block; }
  .answer { font-size: 18px; } .columns { gap: 6px; margin-top: 6px; }
  .card { padding: 5px 9px; } .card + .card { margin-top: 6px; }
  .group li, .left li { margin: 1px 0; }
  .dots, .small, .next pre, .chip { font-size: 8px; }
  .asked { font-size: 10px; } .next h2 { font-size: 12px; } .lead { max-width: none; }
  .group li { grid-template-columns: 6em 7em 1fr; }
  .matrix td, .matrix th { padding: 2px 6px; font-size: 8px; } .matrix td b { font-size: 9px; }
}
{% endblock %}
{% block body %}
<header>
<p class="asked">Is it worth federating?</p>
<h1 class="answer"><span class="{{ mark.kind }}">{{ mark.sign }}</span> {{ headline }}</h1>
{% if pilot and pilot.to_do %}
<section class="card next">
<h2>What to do next</h2>
<p>{{ pilot.to_do }} To paste into a terminal:</p>
<pre tabindex="0" role="region" aria-label="The next command"><code>{{ pilot.command }}</code></pre>
</section>
{% endif %}
<p class="lead">{{ lead }}</p>
{{ navigation([("How the training went", "report.html")]) }}
</header>
<main>
<div class="columns">
<div>
{% if pilot %}
<section class="card">
<h2>Who gains how much, and how</h2>
<div class="group plain">
<ul>
{% for line in pilot_lines %}
<li><b>{{ line.names }}</b> {{ chip(marks[line.verdict]) }} <span>
{% if line.figure %}
<b>{{ line.figure }}</b>
{% endif %}
<span class="small">{{ line.told }}.{% if line.recommended %} To try:
<b>{{ line.recommended }}</b>.{% endif %}</span></span></li>
{% endfor %}
</ul>
</div>
<h3>On average over the sites</h3>
<ul class="dots">
{% for way, change in ways %}
<li>{{ way }}: {{ change }}</li>
{% endfor %}
</ul>
</section>
{% else %}
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
{% endif %}
<section class="card">
<h2>How sure this is</h2>
<ul class="dots">
{% for sentence in sure %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
</section>
{% if pilot %}
<section class="card">
<h2>What would change the answer</h2>
<ul class="dots">
{% for sentence in would_change %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
</section>
{% endif %}
</div>
<div>
{% if changes %}
{{ drawn(changes) }}
{% endif %}
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
</div>
{% if order %}
{% if pilot %}
<h2>Why: how far apart the sites' data are</h2>
<p class="quiet">The cost between two sites says how far apart their data are in the eyes of a model
that all trained for one round: 0 is the same, 1 the opposite. It explains, and does not decide: it
sees neither by which rule a site labels its rows nor how frequent its classes are.</p>
{% if doubts %}
<ul class="dots">
{% for name, doubt in doubts %}
<li>{{ name }}: {{ doubt }}.</li>
{% endfor %}
</ul>
{% endif %}
{% endif %}
<h2>Cost of every pair</h2>
<p class="quiet">✓ up to {{ limits.beneficial }}, ✗ from {{ limits.detrimental }}, ? between or
within what chance alone would make; ○ nothing to compare. Below: the most that equal data would
cost by chance (95 %), and the share of the row's site that was compared with the column's.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Cost of every pair, a table">
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
{% if pictures and not order %}
<h2>Pictures</h2>
{{ gallery(pictures) }}
{% endif %}
<p class="on-paper">Every figure behind this page stands in the file itself, precheck.html.</p>
<div class="detail">
{% if pictures and order %}
<h2>Pictures</h2>
{{ gallery(pictures) }}
{% endif %}
{{ sections(tables) }}
</div>
<p class="quiet">Run {{ name }}.</p>
</main>
{% endblock %}
"""
