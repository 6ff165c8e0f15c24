"""Code identity: one line for Coterie, one for each piece from elsewhere, the same for a wheel."""

import shutil
from importlib.metadata import version

from plan import ROOT

import hatch_build
from common import code_identity
from common.code_identity import code_of_run, installed_code
from common.config import Settings


def test_a_runs_code_names_coterie_and_every_piece_from_elsewhere():
    own = f"Coterie {installed_code()}"
    assert code_of_run(Settings()) == [own]
    assert code_of_run(Settings(metrics="auroc,numpy:mean")) == [
        own,
        f"metrics = 'numpy:mean': numpy {version('numpy')}",
    ]


def test_a_wheels_imports_change_nothing_and_any_other_byte_does(tmp_path, monkeypatch):
    for package in ("client_app", "common"):
        shutil.copytree(ROOT / package, tmp_path / package)
    monkeypatch.setattr(code_identity, "_ROOT", tmp_path)

    def digest():
        installed_code.cache_clear()
        return installed_code()

    before = digest()
    try:
        for path in tmp_path.rglob("*.py"):
            path.write_bytes(hatch_build.below_top(path.read_bytes()))
        assert digest() == before
        steps = tmp_path / "client_app" / "training" / "steps.h"
        steps.write_bytes(steps.read_bytes() + b"\n")
        assert digest() != before
    finally:
        installed_code.cache_clear()
