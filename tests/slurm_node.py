"""A Slurm of one machine, with daemons, keys, ports and files of its own."""

import os
import secrets
import shutil
import socket
import subprocess
import time

import pytest

from deploy.sites.site import free_port

CONF = """\
ClusterName=one
SlurmctldHost={host}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName={host} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmNode:
    """Its daemons; skips the test where it cannot be started."""

    def __init__(self, folder):
        programs = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
        absent = [name for name in programs if shutil.which(name) is None]
        if absent or os.getuid() != 0:
            pytest.skip(f"no Slurm: {', '.join(absent) or 'only root can start one'}")
        self.folder = folder
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        conf = folder / "slurm.conf"
        host, port, node_port = socket.gethostname(), free_port(), free_port()
        conf.write_text(CONF.format(host=host, folder=folder, port=port, node_port=node_port))
        self.environment = os.environ | {"SLURM_CONF": str(conf)}
        munge = ("socket", "pid-file", "seed-file", "log-file")
        files = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in munge]
        self._daemons = [
            self._start("munged", "--foreground", "--force", f"--key-file={key}", *files),
            self._start("slurmctld", "-D"),
            self._start("slurmd", "-D"),
        ]
        end = time.monotonic() + 60
        while "idle" not in self.told("sinfo", "--noheader", "--format=%T"):
            if time.monotonic() > end:
                log = (folder / "slurmctld.log").read_text()[-500:]
                self.stop()
                pytest.skip(f"no Slurm: it did not start: {log}")
            time.sleep(0.5)

    def _start(self, *command):
        with (self.folder / f"{command[0]}.out").open("ab") as out:
            return subprocess.Popen(command, env=self.environment, stdout=out, stderr=out)

    def told(self, *command):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        return done.stdout

    def stop(self):
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait()
