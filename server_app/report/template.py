"""Template of a report: what its page is made of, and how it is laid out."""

from dataclasses import dataclass

from server_app.report.page import PageTable, Picture, render


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


@dataclass(frozen=True)
class Page:
    """All that a report says, from top to bottom."""

    name: str
    state: str
    lead: list[str]
    error: str
    notes: list[str]
    facts: list[Fact]
    pictures: list[Picture]
    absences: list[Absence]
    tables: list[PageTable]

    def render(self) -> str:
        """Return the page; every text is escaped, only the pictures' elements are markup."""
        return render(_TEMPLATE, page=self)


_TEMPLATE = """\
{% extends "frame" %}
{% from "parts" import gallery, sections %}
{% block title %}{{ page.name }}: {{ page.state }}{% endblock %}
{% block body %}
<header>
<h1>{{ page.name }} <span class="badge {{ page.state }}">{{ page.state }}</span></h1>
{% for sentence in page.lead %}
<p class="lead">{{ sentence }}</p>
{% endfor %}
{% if page.error %}
<div class="error" role="alert"><strong>The run stopped with an error:</strong>
<pre>{{ page.error }}</pre></div>
{% endif %}
{% if page.notes %}
<div class="notes"><strong>Not everything in the run's folder could be read:</strong>
<ul>{% for note in page.notes %}<li>{{ note }}</li>{% endfor %}</ul></div>
{% endif %}
<dl class="facts">
{% for fact in page.facts %}
<div><dt>{{ fact.label }}</dt><dd>{{ fact.value }}</dd><dd class="note">{{ fact.note }}</dd></div>
{% endfor %}
</dl>
</header>
<main>
<h2>Pictures</h2>
{{ gallery(page.pictures) }}
{% if page.absences %}
<p class="absent">Not shown:</p>
<ul class="absent">
{% for absence in page.absences %}
<li>{{ absence.title }}: {{ absence.reason }}.</li>
{% endfor %}
</ul>
{% endif %}
{{ sections(page.tables) }}
</main>
{% endblock %}
"""
