"""A third party's package beside the checkout; test_wheel.py has it beside the wheel."""

import os
import sys

import acme
import pytest
from plan import ROOT


@pytest.mark.slow
def test_a_third_partys_package_works_with_every_command(tmp_path):
    packages = tmp_path / "packages"
    pip = acme.Commands([sys.executable, "-m", "pip", "--quiet"], tmp_path, os.environ)
    pip("install", "--no-deps", "--no-build-isolation", "--target", packages, acme.PROJECT)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{packages}", "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", "deploy.cli"]
    coterie = acme.Commands(program, tmp_path, environment)
    tests = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"]
    acme.Commands(tests, tmp_path, environment)(acme.PROJECT / "test_pieces.py")
    placed = acme.play(coterie, packages)
    pages = acme.Commands(
        [sys.executable, ROOT / "docs/methods/generate.py"], tmp_path, environment
    )
    pages(tmp_path)
    assert "coterie simulate strategy=acme-fewest" in (tmp_path / "acme-fewest.md").read_text()
    acme.play_without(coterie, packages, placed)
