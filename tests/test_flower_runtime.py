"""The same ServerApp and ClientApp under Flower's own simulation (Ray)."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file

from client_app.simulated_sites import SIMULATION
from common.config import Settings
from deploy.simulation.grid import simulate
from deploy.sites.site import free_port

ROOT = Path(__file__).parent.parent
PATIENCE = 500.0  # seconds; machines that run tests have other things to do

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * PATIENCE)]


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    """Runs ``flwr`` with a home and a SuperLink of its own, which is stopped at the end.

    Flower would start one itself, and give up after 15 s: too few where a machine is busy.
    """
    home = tmp_path_factory.mktemp("flower-home")
    bin_folder = Path(sys.executable).parent
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        SIMULATION: "1",
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
    }

    def run(*words):
        return subprocess.run(
            [bin_folder / "flwr", *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    port = free_port()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "ours"\n\n'
        f'[superlink.ours]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    words = ["--insecure", "--simulation", "--isolation", "subprocess"]
    started = [*words, "--host", "127.0.0.1", "--port", str(port)]
    with (home / "superlink.log").open("wb") as log:
        process = subprocess.Popen(
            [bin_folder / "flower-superlink", *started], env=environment, stdout=log, stderr=log
        )
    try:
        wait_for(process, f"http://127.0.0.1:{port}/health")
        yield run
    finally:
        stop(home)
        process.wait()


def wait_for(process, address):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, "flower-superlink ended"
        with suppress(httpx.HTTPError):
            if httpx.get(address, timeout=5).is_success:
                return
        time.sleep(0.25)
    raise AssertionError("flower-superlink does not answer")


def stop(home):
    """End the detached SuperLink and what it started: every process with this FLWR_HOME."""
    wanted = f"FLWR_HOME={home}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mine = wanted in (process / "environ").read_bytes().split(b"\0")
            if mine and process.name != str(os.getpid()):
                os.kill(int(process.name), 9)
        except (OSError, ProcessLookupError):
            continue  # it ended by itself


def run_config(settings):
    pairs = settings.to_dict().items()
    return " ".join(f"{key}={json.dumps(value)}" for key, value in pairs)


def run_there(flower, settings):
    """Return the run folder and what was printed."""
    done = flower(
        "run",
        ".",
        "--stream",
        "--federation-config",
        f"num-supernodes={settings.num_clients} client-resources-num-cpus=1",
        "--run-config",
        run_config(settings),
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    # flwr run exits 0 also when the run failed; the newest run is listed first
    assert json.loads(flower("ls", "--format", "json").stdout)["runs"][0]["status"] == (
        "finished:completed"
    ), said
    [folder] = Path(settings.output_dir).iterdir()
    return folder, done.stdout


def assert_equal_runs(there, here):
    assert {path.name for path in there.iterdir()} == {path.name for path in here.iterdir()}
    results = [json.loads((f / "results.json").read_text()) for f in (there, here)]
    for key in ("accuracy", "shared_accuracy", "selected"):
        assert results[0].get(key) == results[1].get(key)
    names = {path.name for path in (here / "models").glob("*.safetensors")}
    assert {path.name for path in (there / "models").glob("*.safetensors")} == names
    for name in names:
        first, second = load_file(there / "models" / name), load_file(here / "models" / name)
        assert all(np.array_equal(first[key], second[key]) for key in first)


def test_flwr_run_gives_the_same_numbers_as_coterie_simulate(flower, tmp_path):
    settings = Settings.parse(
        {
            "num-clients": 5,
            "num-server-rounds": 3,
            "local-epochs": 1,
            "routing": "per-cluster",
            "energy": "codecarbon",
            "output-dir": str(tmp_path / "flower"),
        }
    )
    folder, said = run_there(flower, settings)
    assert "round   3/3  accuracy" in said
    assert f"run: {folder}" in said

    # metering changes no number; Flower's sites share the machine with its ServerApp
    clients = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    assert {client["joules_source"] for client in clients} == {"attributed"}
    assert all(client["joules"] > 0 for client in clients if client["phase"] == "train")

    ours = settings.replace(output_dir=str(tmp_path / "ours"), energy="off")
    assert_equal_runs(folder, simulate(ours))


def test_flwr_run_groups_by_cost_and_keeps_personal_models(flower, tmp_path):
    settings = Settings.parse(
        {
            "num-clients": 5,
            "num-server-rounds": 3,
            "local-epochs": 1,
            "strategy": "ot-groups",
            "objective": "ditto",
            "output-dir": str(tmp_path / "flower"),
        }
    )
    folder, _ = run_there(flower, settings)
    ours = simulate(settings.replace(output_dir=str(tmp_path / "ours")))
    assert_equal_runs(folder, ours)
    for name in ("precheck.json", "clusters.json"):
        assert (folder / name).read_text() == (ours / name).read_text()


def test_wrong_number_of_nodes_is_said_and_the_run_fails(flower, tmp_path):
    flower(
        "run",
        ".",
        "--stream",
        "--federation-config",
        "num-supernodes=3 client-resources-num-cpus=1",
        "--run-config",
        f"num-clients=2 output-dir={json.dumps(str(tmp_path))}",
    )
    last = json.loads(flower("ls", "--format", "json").stdout)["runs"][0]
    assert last["status"] == "finished:failed"
    [folder] = tmp_path.iterdir()
    status = json.loads((folder / "status.json").read_text())
    assert status["state"] == "failed"
    assert "the federation has 3 nodes, but digits is split over 2 sites" in status["error"]


@pytest.mark.parametrize(
    "words",
    [
        {"strategy": "ifca", "num-clusters": 2, "clients-per-round": 3},
        {"strategy": "cfl", "cfl-first-round": 1, "cfl-mean-norm": 100},
    ],
    ids=["ifca", "cfl"],
)
def test_flwr_run_lets_sites_choose_models_and_splits_clusters(flower, tmp_path, words):
    small = {"num-clients": 5, "num-server-rounds": 3, "local-epochs": 1}
    settings = Settings.parse(small | words | {"output-dir": str(tmp_path / "flower")})
    folder, _ = run_there(flower, settings)
    ours = simulate(settings.replace(output_dir=str(tmp_path / "ours")))
    assert_equal_runs(folder, ours)
    assert (folder / "clusters.json").read_text() == (ours / "clusters.json").read_text()
