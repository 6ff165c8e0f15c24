"""Dependencies point one way: deploy -> server_app, client_app -> common."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "common": {"common"},
    "server_app": {"server_app", "common"},
    "client_app": {"client_app", "common"},
    "deploy": {"deploy", "server_app", "client_app", "common"},
}
# Arithmetic: everything in here can be read, tested and reused without a federation.
ARITHMETIC = [
    "common/secagg/shamir.py",
    "common/secagg/fixed_point.py",
    "common/secagg/neighbours.py",
    "common/secagg/protocol.py",
    "common/seeds.py",
    "common/plugins.py",
    "common/objectives.py",
    "common/networks.py",
    "common/identity.py",
    "common/two_party/label_products.py",
    "common/two_party/ring.py",
    "common/two_party/triangles.py",
    "common/two_party/protocol.py",
    "common/splits.py",
    "common/data/readers.py",
    "common/data/own_data.py",
    "common/data/flamby.py",
    "common/data/datasets.py",
    "common/data/synthetic.py",
    "common/data/shifts.py",
    "client_app/shifted_sites.py",
    "common/privacy/closed_form.py",
    "common/privacy/noise.py",
    "common/privacy/accounting.py",
    "common/privacy/book.py",
    "common/privacy/labels.py",
    "common/projection.py",
    "common/privacy/statistics.py",
    "server_app/dissimilarity.py",
    "server_app/clustering/clusters.py",
    "server_app/clustering/algorithms.py",
    "server_app/clustering/partition.py",
    "server_app/clustering/repulsion.py",
    "server_app/selection/rules.py",
    "server_app/transport/representations.py",
    "server_app/transport/gaussians.py",
    "server_app/transport/noisy_gaussians.py",
    "server_app/transport/noisy_costs.py",
    "common/transport_plan.py",
    "server_app/transport/variants.py",
    "server_app/transport/class_cost.py",
    "server_app/transport/null_costs.py",
    "server_app/transport/evidence.py",
    "server_app/transport/pair_costs.py",
    "server_app/transport/wasserstein.py",
    "server_app/selection/in_clusters.py",
    "server_app/clustering/by_labels.py",
    "server_app/clustering/by_models.py",
    "server_app/record/fairness.py",
    "server_app/record/energy_figures.py",
    "server_app/metering/attribution.py",
    "common/radio.py",
    "common/power.py",
    "server_app/rounds/divergence.py",
    "server_app/transport/advice.py",
]
SOURCES = [path for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py"))]


def imported(path):
    """Every module that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_packages_import_only_what_lies_below_them(path):
    package = path.relative_to(ROOT).parts[0]
    ours = {name.partition(".")[0] for name in imported(path)} & ALLOWED.keys()
    assert ours <= ALLOWED[package]


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_loads_neither_flower_nor_torch(name):
    module = name.removesuffix(".py").replace("/", ".")
    code = f"import {module}, sys; print([m for m in ('flwr', 'torch') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_importing_the_command_is_light():
    code = (
        "import deploy.cli, sys; print([m for m in ('flwr', 'torch', 'ray') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_what_benchmarks_import_is_there():
    files = sorted((ROOT / "benchmarks").rglob("*.py"))
    assert files
    for file in files:
        importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
