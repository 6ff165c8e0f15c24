"""Page of protections: docs/protections.md from the catalogue and the list of protections.

python docs/generate_protections.py
"""

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))  # from a checkout that is not installed

from common.config import Settings  # noqa: E402
from server_app.methods import compose  # noqa: E402
from server_app.methods.catalogue import CARDS  # noqa: E402
from server_app.protection.catalogue import PROTECTIONS, WORDS, Protection  # noqa: E402

PAGE = FOLDER / "protections.md"
_HEAD = """\
<!-- Made by docs/generate_protections.py from server_app/protection/catalogue.py: change it there.
-->

# Methods and protections

Every method with every protection: it runs, or it is refused before the first message because the
protection keeps from the server what the method needs to see. [The threat model](threat-model.md)
says what each is worth.
"""


def page() -> str:
    """Return the page's text."""
    shown = [protection for protection in PROTECTIONS if protection.available]
    head = ["| `strategy` |", *(f" `{each.setting}` |" for each in shown)]
    rows = ["".join(head), "|---|" + "---|" * len(shown)]
    rows += [_row(name, shown) for name in CARDS]
    return "\n".join([_HEAD, *rows, "", *map(_section, PROTECTIONS)])


CHANGING = {
    "label-privacy=two-party": {"metric": "hellinger", "label-privacy": "two-party"},
    "two-party=true": {"two-party": True},
    "reveal=cost": {"two-party": True, "reveal": "cost"},
}
"""Protections that change what a method asks for, with the settings that go with them."""


def needs_of(name: str, setting: str) -> frozenset[str]:
    """Return what a method needs to see with a protection; settings are those of its card."""
    values = CARDS[name].example_settings | {"strategy": name}
    return compose(Settings.parse(values | CHANGING.get(setting, {}))).needs


def _row(name: str, shown: list[Protection]) -> str:
    cells = [f"[`{name}`](methods/{name}.md)"]
    for protection in shown:
        needs = needs_of(name, protection.setting)
        denied = sorted(protection.denied(needs))
        runs = "runs" if protection.works_on(needs) else "runs; nothing to protect"
        cells.append(f"refused: needs {WORDS[denied[0]].means}" if denied else runs)
    return "| " + " | ".join(cells) + " |"


def _section(protection: Protection) -> str:
    reserved = "" if protection.available else "Not in this version: the name is refused. "
    hides = ", ".join(WORDS[word].means for word in sorted(protection.hidden())) or "nothing"
    return (
        f"## `{protection.setting}`\n\n{reserved}{protection.whom}\n\n"
        f"Hidden from the method: {hides}.\n\nNot protected: {protection.still}\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
