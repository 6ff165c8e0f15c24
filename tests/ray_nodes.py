"""One or two nodes of Ray on this machine, a core each, for what runs on a cluster."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayNodes:
    """A head and a second node, or the head alone; each is a process group of its own."""

    def __init__(self, *, second=True):
        # A path of pytest's is too long for Ray's sockets.
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        port = self.address.partition(":")[2]
        head = ("--head", f"--port={port}", "--include-dashboard=false")
        self.head = self._start(*head, f"--temp-dir={self._folder}")
        self._wait_until(self._head_listens)
        self.second = self._start(f"--address={self.address}") if second else None
        self._wait_until(self._all_run)

    def _start(self, *words):
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words]
        command += ["--num-cpus=1", "--num-gpus=0", "--object-store-memory=100000000"]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--node-ip-address=127.0.0.1"],
                stdout=log,
                stderr=log,
                cwd=self._folder,  # the checkout is not where a node looks for code
                # Ray's own niceness is 15: whatever else works on the machine would go first.
                env=environment | QUIET | {"RAY_worker_niceness": "0"},
                start_new_session=True,
            )

    def _head_listens(self):
        host, port = self.address.split(":")
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), timeout=1).close()
            return True
        return False

    def _all_run(self):
        started = (self._folder / "log").read_text().count("Ray runtime started")
        return started == (2 if self.second else 1)

    @staticmethod
    def _wait_until(condition, seconds=120):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it takes too long"
            time.sleep(0.1)

    def kill_second(self):
        """Lose the second node, as by a power cut."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.second.pid, signal.SIGKILL)
        self.second.wait()

    def close(self):
        """End all nodes."""
        if self.second:
            self.kill_second()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.head.pid, signal.SIGTERM)
        try:
            self.head.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self.head.pid, signal.SIGKILL)
            self.head.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
