"""Examples in docstrings give what they say; those in the documentation name what there is."""

import ast
import doctest
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("common", "client_app", "server_app", "deploy", "coterie")


def modules_with_examples():
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_examples_in_docstrings_are_right(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0
    assert failed == 0  # what was expected and what came is in the captured output


def python_blocks():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for number, part in enumerate(page.read_text(encoding="utf-8").split("```python\n")[1:]):
            yield pytest.param(part.partition("```")[0], id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("code", list(python_blocks()))
def test_python_in_the_documentation_parses_and_imports_what_there_is(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in PACKAGES:
            module = importlib.import_module(node.module)
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                assert hasattr(module, alias.name) or importlib.util.find_spec(submodule)
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in PACKAGES:
                    importlib.import_module(alias.name)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "coterie":
            assert hasattr(importlib.import_module("coterie"), node.attr)
