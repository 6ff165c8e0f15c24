"""Examples in docstrings say what they show."""

import doctest
import importlib

import plan
import pytest

MODULES = [
    plan.module_of(path)
    for path in plan.sources()
    if ">>> " in (plan.ROOT / path).read_text("utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_show_what_they_say(module):
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried > 0  # examples stand in docstrings, not in comments
    assert failed == 0
