"""Pages: links lead to what is there, and every page can be found from docs/README.md."""

import re
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
PAGES = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")]
PAGES += sorted(DOCS.rglob("*.md"))


def prose(page):
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(page):
    """The targets of a page's links and pictures within the repository: file and anchor."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = unquote(target).partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def anchors(page):
    """What a heading can be linked as: its words in small letters, joined by hyphens."""
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def leads_nowhere(target, anchor):
    if not target.exists():
        return True
    return bool(anchor) and anchor not in anchors(target)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(page):
    assert [f"{to}#{anchor}" for to, anchor in links(page) if leads_nowhere(to, anchor)] == []


def test_every_page_is_reachable_from_the_index():
    found, front = {INDEX}, [INDEX]
    while front:
        new = {to for to, _ in links(front.pop()) if to.suffix == ".md" and DOCS in to.parents}
        front += new - found
        found |= new
    assert [str(page) for page in PAGES if DOCS in page.parents and page not in found] == []


def test_index_links_every_page_once_and_those_of_the_methods_by_their_own_index():
    linked = [to for to, _ in links(INDEX) if DOCS in to.parents]
    methods = {*(DOCS / "methods").glob("*.md")} - {DOCS / "methods" / "README.md"}
    assert sorted(linked) == sorted({*DOCS.rglob("*.md")} - methods - {INDEX})


def test_citation_names_the_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
