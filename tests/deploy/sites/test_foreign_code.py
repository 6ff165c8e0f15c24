"""Code of a third party on real sites: where it is installed, and where a site's file allows it."""

import json
import sys

import acme
import deployments
import numpy as np
import pytest

SITES = ("north", "south", "west")
RUN = {
    "strategy": "acme_pieces.choosing:FEWEST",
    "model": "acme_pieces.learning:dense",
    "metrics": "acme-sureness",
    "optimizer": "adam",
    "dataset": "beds",
    "num-clients": 3,
    "num-server-rounds": 1,
    "local-epochs": 1,
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * deployments.PATIENCE)]


def table(path, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 3))
    lines = [f"{a},{b},{c},{int(a > 0)}" for a, b, c in x.round(3)]
    path.write_text("\n".join(["a,b,c,label", *lines]) + "\n")


def allow(running, site):
    path = running.folder / site / "site.toml"
    path.write_text(f'allow-code = "acme_pieces"\n{path.read_text()}')


def test_a_site_runs_the_code_that_its_own_file_allows_and_no_other(tmp_path):
    with deployments.deployment(tmp_path) as running:
        packages = tmp_path / "packages"
        pip = acme.Commands([sys.executable, "-m", "pip", "--quiet"], tmp_path, None)
        pip("install", "--no-deps", "--no-build-isolation", "--target", packages, acme.PROJECT)
        running.finds_modules_in(packages)
        for seed, site in enumerate(SITES):
            table(tmp_path / f"{site}.csv", seed)
        entries = {site: {"data-path": str(tmp_path / f"{site}.csv")} for site in SITES}
        running.provision(entries, {"dataset": "beds", "device": "cpu"})
        for site in SITES[1:]:
            allow(running, site)
        running.serve()
        running.coterie("register", running.server)
        for site in SITES:
            running.start_site(site)
        words = [f"{key}={value}" for key, value in RUN.items()]

        process = running.submit(*words)
        assert process.wait(timeout=deployments.PATIENCE) == 1
        status = json.loads((running.newest_run() / "status.json").read_text())
        assert "site north: " in status["error"]
        assert "is code of acme_pieces, which the site's file does not allow" in status["error"]
        assert status["round"] == 0

        running.kill("north")
        allow(running, "north")
        running.start_site("north")
        [line] = (running.run(*words) / "rounds.jsonl").read_text().splitlines()
        assert json.loads(line)["metrics"]["acme-sureness"] > 0
