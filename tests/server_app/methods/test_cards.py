"""The catalogue, its pages and the guide say the same and can be run as they stand."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from common.config import Settings, load
from common.errors import ConfigError
from server_app.methods import METHODS, Card, build
from server_app.methods.catalogue import CARDS

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "methods"
GUIDE = ROOT / "docs" / "add-your-own-method.md"


def generator():
    spec = importlib.util.spec_from_file_location("generate", PAGES / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_method_has_a_card_and_every_card_a_method():
    assert list(CARDS) == list(METHODS)


def test_readme_lists_the_catalogue():
    made = generator()
    assert made.README.read_text(encoding="utf-8") == made.readme(), "run docs/methods/generate.py"


def test_committed_pages_are_the_generated_ones():
    pages = generator().pages()
    committed = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    assert committed == pages, "run python docs/methods/generate.py"


@pytest.mark.parametrize("name", CARDS)
def test_example_is_a_command_that_would_start(name):
    settings = load(None, [f"strategy={name}", *CARDS[name].example.split()])
    assert build(settings).needs <= WORDS.keys()


WORDS = {
    "sizes": "",
    "labels": "label histograms",
    "losses": "loss",
    "updates": "update",
    "models": "models",
    "every-model": "models",
    "representations": "representations of single rows",
    "rehearsals": "",
    "accuracies": "",
}


@pytest.mark.parametrize("name", CARDS)
def test_card_tells_of_everything_that_the_method_needs_to_see(name):
    method = build(load(None, [f"strategy={name}", *CARDS[name].example.split()]))
    for need in method.needs:
        assert WORDS[need] in CARDS[name].sees
    if "losses" not in method.needs:
        assert "loss" not in CARDS[name].sees


@pytest.mark.parametrize("name", CARDS)
def test_settings_of_a_card_exist(name):
    assert {key.replace("-", "_") for key in CARDS[name].settings} <= set(Settings.fields())


def test_card_without_a_text_is_refused():
    texts = dict.fromkeys(("paper", "source", "trains", "sees", "rule", "assumes", "costs"), "x")
    Card(**texts, settings=(), example="x")
    with pytest.raises(ConfigError, match="no costs"):
        Card(**texts | {"costs": ""}, settings=(), example="x")


def code_of_the_guide():
    [code] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return code


def test_method_of_the_guide_takes_less_than_50_lines_and_runs(tmp_path):
    code = code_of_the_guide()
    assert len(code.splitlines()) < 50
    (tmp_path / "middle_loss.py").write_text(code)
    done = subprocess.run(
        [sys.executable, tmp_path / "middle_loss.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    told = dict(line.split(": ") for line in done.stdout.splitlines() if ": " in line)
    assert 0 <= float(told["middle-loss"]) <= 1
    for folder in (tmp_path / "runs").iterdir():
        lines = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
        asked = [line for line in lines if line["phase"] == "loss"]
        mine = "middle-loss" in (folder / "config.toml").read_text()
        assert len(asked) == (3 * 12 if mine else 0)
