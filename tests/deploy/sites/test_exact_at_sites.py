"""Models from sums at real hospitals: TLS, node keys, each its own file, and one that is killed."""

import json

import deployments
import numpy as np
import pytest
from safetensors.numpy import load_file

HOSPITALS = ("cleveland", "hungarian", "va")
RUN = {"strategy": "fedavg", "dataset": "heart-disease", "num-clients": 3, "report": False}
TREES = RUN | {"model": "trees", "tree-count": 2, "tree-depth": 2, "num-server-rounds": 2}
OWN = {
    "dataset": "heart-disease",
    "device": "cpu",
    "releases": "model,masked-model,row-sums",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.shared_data,
    pytest.mark.timeout(4 * deployments.PATIENCE),
]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_data):
    """A running server and three running sites."""
    with deployments.deployment(tmp_path_factory.mktemp("hospitals"), host="0.0.0.0") as running:
        files = {site: shared_data / f"HeartDisease/processed.{site}.data" for site in HOSPITALS}
        running.provision({site: {"data-path": str(file)} for site, file in files.items()}, OWN)
        running.serve()
        running.coterie("register", running.server)
        for site in HOSPITALS:
            running.start_site(site)
        yield running


def words(settings):
    return [f"{key}={value}" for key, value in settings.items()]


def model_of(folder):
    return load_file(folder / "models" / "model-0.safetensors")


def assert_equal(folder, ours):
    first, second = model_of(folder), model_of(ours)
    assert first.keys() == second.keys()
    for name in first:
        assert np.array_equal(first[name], second[name]), name


def scores(folder):
    return [json.loads(line)["score"] for line in (folder / "rounds.jsonl").open()]


def test_a_glm_with_intercepts_of_the_sites_is_that_of_one_process(hospitals, tmp_path):
    settings = RUN | {"model": "glm", "glm-l2": 1.0, "glm-intercepts": "site"}
    settings |= {"num-server-rounds": 30}
    folder = hospitals.run(*words(settings))
    ours = hospitals.in_one_process(settings, tmp_path, HOSPITALS)
    assert_equal(folder, ours)
    assert scores(folder) == scores(ours)
    for name in ("models/coefficients-0.csv", "fitted.json"):
        assert (folder / name).read_text() == (ours / name).read_text()


def test_trees_under_secure_sums_are_those_of_one_process_in_the_clear(hospitals, tmp_path):
    folder = hospitals.run(*words(TREES | {"secagg": True}))
    ours = hospitals.in_one_process(TREES, tmp_path, HOSPITALS)
    assert_equal(folder, ours)
    told = json.loads((folder / "privacy.json").read_text())["releases"]
    assert not [entry for entry in told if entry["kind"] == "train.row_sums"]


def test_a_site_killed_at_a_level_is_named_and_the_run_goes_on_to_the_same_trees(
    hospitals, tmp_path
):
    settings = TREES | {"round-timeout": 60}
    before = hospitals.log("va").count("Receiving: train message")
    process = hospitals.submit(*words(settings))
    hospitals.wait_for(
        "a level of the second tree to reach va",
        lambda: hospitals.log("va").count("Receiving: train message") >= before + 4,
    )
    hospitals.kill("va")
    assert process.wait(timeout=deployments.PATIENCE) == 1
    folder = hospitals.newest_run()
    status = json.loads((folder / "status.json").read_text())
    assert "va" in status["error"], status
    hospitals.start_site("va")
    words_again = ("--config", folder / "config.toml", f"resume={folder}")
    assert hospitals.run(*words_again) == folder
    assert_equal(folder, hospitals.in_one_process(TREES, tmp_path, HOSPITALS))
