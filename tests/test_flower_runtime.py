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

from common.config import Settings
from deploy.simulation import simulate
from deploy.site import free_port

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
    done = flower(
        "run",
        ".",
        "--stream",
        "--federation-config",
        "num-supernodes=5 client-resources-num-cpus=1",
        "--run-config",
        run_config(settings),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # flwr run exits 0 also when the run failed
    [listed] = json.loads(flower("ls", "--format", "json").stdout)["runs"]
    assert listed["status"] == "finished:completed", done.stdout + done.stderr
    [folder] = (tmp_path / "flower").iterdir()
    assert "round   3/3  accuracy" in done.stdout
    assert f"run: {folder}" in done.stdout

    # metering changes no number; Flower's sites share the machine with its ServerApp
    clients = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    assert {client["joules_source"] for client in clients} == {"attributed"}
    assert all(client["joules"] > 0 for client in clients if client["phase"] == "train")

    ours = simulate(settings.replace(output_dir=str(tmp_path / "ours"), energy="off"))
    assert {path.name for path in folder.iterdir()} == {path.name for path in ours.iterdir()}
    results = [json.loads((f / "results.json").read_text()) for f in (folder, ours)]
    assert results[0]["accuracy"] == results[1]["accuracy"]
    assert results[0]["selected"] == results[1]["selected"]
    for path in (ours / "models").iterdir():
        first, second = load_file(path), load_file(folder / "models" / path.name)
        assert all(np.array_equal(first[name], second[name]) for name in first)


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
