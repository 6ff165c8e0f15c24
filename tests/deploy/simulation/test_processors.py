"""Processors: as many workers as there are processors that this process may use."""

import os
import shutil
import subprocess
import sys

import pytest
from commands import coterie

from deploy.simulation.grid import InProcessGrid

WORKERS = f"""
from flwr.clientapp import ClientApp
from {InProcessGrid.__module__} import InProcessGrid

with InProcessGrid(ClientApp, {{}}, num_nodes=4) as grid:
    print(len(grid._pool.workers) if grid._pool else 1)
"""
AS_ON_A_MAC = "import os\nif hasattr(os, 'sched_getaffinity'):\n    del os.sched_getaffinity\n"


def test_a_containers_quota_bounds_the_workers():
    own = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mounts = "mount -t tmpfs none /sys/fs/cgroup && echo '50000 100000' > /sys/fs/cgroup/cpu.max"
    if not shutil.which("unshare") or subprocess.run([*own, mounts], check=False).returncode:
        pytest.skip("nothing can be mounted here, not even in a namespace of one's own")
    words = [*own, f'{mounts} && exec "$0" "$@"', sys.executable, "-c", WORKERS]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1


def test_without_affinity_as_on_macos_the_first_command_runs(tmp_path, no_report):
    (tmp_path / "sitecustomize.py").write_text(AS_ON_A_MAC)
    words = ("simulate", "dataset=digits", "num-clients=4", "clients-per-round=2")
    words += ("num-server-rounds=1", "report=false")
    command = [sys.executable, "-c", "import coterie; coterie.main()", *words]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("run: ")


def test_without_affinity_a_comparison_runs_too(tmp_path, no_report, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    words = ("compare", "strategy=random", "dataset=digits", "num-clients=4", "clients-per-round=2")
    words += ("num-server-rounds=1", "local-epochs=1", "report=false")
    done = coterie(*words, cwd=tmp_path)
    assert done.returncode in (0, None), done.stderr
