"""A real Slurm with two nodes on this machine, with ports and files of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import wait_until
from watchtower.drills.launching import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
NODES = ("n1", "n2")
PARTITION = "train"
CHECKED_EVERY_S = 5
SETTINGS = """
ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmdPort={control}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.%n.pid
SlurmctldLogFile={folder}/log/ctld.log
SlurmdLogFile={folder}/log/d.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
TaskProlog={folder}/task_prolog.sh
HealthCheckProgram={folder}/health_check.sh
HealthCheckInterval={checked}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=2 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=2 RealMemory=1000
PartitionName={partition} Nodes=n1,n2 Default=YES OverSubscribe=FORCE:8 State=UP
"""


def why_not() -> str:
    """Return what this machine lacks for it; "" if nothing."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if missing:
        return "apt install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "Slurm's daemons need root here"


class Cluster:
    """The running daemons and how they are spoken to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        self.environment["PATH"] += ":/usr/sbin"

    def start(self, stack: contextlib.ExitStack) -> None:
        """Start the daemons, and wait until both nodes are idle."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for name in ("state", "log"):
            (self.folder / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        ports = dict(zip(("control", *NODES), find_ports(3), strict=True))
        text = SETTINGS.format(
            folder=self.folder, host=host, partition=PARTITION, checked=CHECKED_EVERY_S, **ports
        )
        (self.folder / "slurm.conf").write_text(text)
        munge = [f"--{name}={self.folder}/munge.{name[:-5]}" for name in ("key-file", "pid-file")]
        munge += [f"--log-file={self.folder}/munge.log", f"--socket={self.folder}/munge.sock"]
        munge += [f"--seed-file={self.folder}/munge.seed"]
        self._start(stack, "munged", "--foreground", "--force", *munge)
        wait_until((self.folder / "munge.sock").exists, "munge answers")
        self._start(stack, "slurmctld", "-D")
        for node in NODES:
            self._start(stack, "slurmd", "-D", "-N", node)
        wait_until(lambda: self.states() == {"n1": "idle", "n2": "idle"}, "both nodes are idle")

    def _start(self, stack: contextlib.ExitStack, *words: str) -> None:
        log = stack.enter_context((self.folder / f"{words[0]}.out").open("ab"))
        process = subprocess.Popen(
            words, env=self.environment, stdout=log, stderr=log, start_new_session=True
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)

    def configure(self, *lines: str) -> None:
        """Let the daemons read their settings with these lines instead of those before."""
        names = tuple(f"{line.partition('=')[0]}=" for line in (*lines, "Prolog="))
        file = self.folder / "slurm.conf"
        kept = [line for line in file.read_text().splitlines() if not line.startswith(names)]
        file.write_text("\n".join([*kept, *lines, ""]))
        self.run("scontrol", "reconfigure")

    def run(self, *words: str) -> str:
        """Run a command of Slurm; returns its output."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def states(self) -> dict[str, str]:
        """Return the state of each node."""
        command = ["sinfo", "-N", "-h", "-o", "%N %t"]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        return dict(line.split() for line in done.stdout.splitlines())

    def job_state(self, job: str) -> str:
        """Return PENDING, RUNNING and so on; "" if the job is over."""
        states = self.run("squeue", "-h", "-o", "%i %T").splitlines()
        return dict(line.split() for line in states).get(job, "")

    def show(self, job: str) -> str:
        """Return what Slurm knows of a job."""
        return self.run("scontrol", "show", "job", job)

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch job; returns its id."""
        file = self.folder / "job.sh"
        file.write_text(f"#!/bin/sh\n{script}\n")
        place = [f"--chdir={self.folder}", f"--output={self.folder}/job.out"]
        return self.run("sbatch", "--parsable", *place, *options, str(file)).strip()


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster; its daemons end on leaving, its jobs before them."""
    cluster = Cluster(folder)
    with contextlib.ExitStack() as stack:
        cluster.start(stack)
        try:
            yield cluster
        finally:
            print(cluster.run("sinfo", "-R"), cluster.run("squeue"))  # shown if a test fails
            cluster.run("scancel", f"--partition={PARTITION}")
            wait_until(lambda: not cluster.run("squeue", "-h"), "no job is left")


def find_ports(count: int) -> list[int]:
    """Return free ports below those of outgoing connections."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return sorted(ports)
