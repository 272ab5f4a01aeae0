"""A job without heartbeats and without a tower, hung or not, on imagined nodes of one machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.system.agent.agent_processes import clean_environment
from watchtower.drills.launching import free_port
from watchtower.service.interpreter import module_command

STAR = Path(__file__).parents[1] / "e2e" / "programs" / "star.py"
NODE = "WATCHTOWER_TEST_NODE"
PATIENCE_S = 60.0
AGENT = module_command("agent")
WATCHTOWER = module_command("watchtower")


class HungStar:
    """Running ranks, by number."""

    def __init__(self, name: str, per_node: int, python: Sequence[str]) -> None:
        self.name, self.per_node, self.python = name, per_node, python
        self.mark = uuid.uuid4().hex
        self.ranks: list[subprocess.Popen[bytes]] = []

    def launch(self, size: int) -> None:
        port = free_port()
        for rank in range(size):
            environment = {
                "PATH": os.environ["PATH"],
                "WATCHTOWER_JOB": self.name,
                "WORLD_SIZE": str(size),
                "RANK": str(rank),
                NODE: self.mark_of(rank // self.per_node),
            }
            self.ranks.append(
                subprocess.Popen(
                    [*self.python, "-I", str(STAR), str(port)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # the tracebacks of their end
                )
            )

    def mark_of(self, node: int) -> str:
        return f"{self.mark}-{node}"

    def match(self, node: int) -> str:
        """What the ranks of one node have in their environment, for --match."""
        return f"{NODE}={self.mark_of(node)}"

    def hang(self, rank: int) -> None:
        """Have a rank read for ever, and wait until every rank is asleep."""
        until = time.monotonic() + PATIENCE_S
        while not self._catches(rank, signal.SIGUSR1):
            assert time.monotonic() < until, "the rank does not start"
            time.sleep(0.05)
        self.ranks[rank].send_signal(signal.SIGUSR1)
        still = 0
        while still < 5:  # between two steps, all ranks may be asleep for a moment
            still = still + 1 if self._has_stopped() else 0
            assert time.monotonic() < until, "the job does not stop"
            time.sleep(0.2)

    def _catches(self, rank: int, number: int) -> bool:
        status = Path(f"/proc/{self.ranks[rank].pid}/status").read_text()
        (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
        return bool(int(caught, 16) >> (number - 1) & 1)

    def _has_stopped(self) -> bool:
        used = [Path(f"/proc/{each.pid}/schedstat").read_text() for each in self.ranks]
        time.sleep(0.2)
        # The rank that reads sleeps in short pieces.
        again = [Path(f"/proc/{each.pid}/schedstat").read_text() for each in self.ranks]
        return sum(a != b for a, b in zip(used, again, strict=True)) <= 1

    def snapshot(self, node: int, *options: str) -> subprocess.CompletedProcess[str]:
        """Take a snapshot of one node."""
        words = ("snapshot", "--node", f"n{node}", "--match", self.match(node))
        return run(*AGENT, *words, *options)

    def close(self) -> None:
        for each in self.ranks:
            each.kill()
            each.wait()


@contextlib.contextmanager
def star(
    size: int, per_node: int, name: str = "star", python: Sequence[str] = (sys.executable,)
) -> Iterator[HungStar]:
    job = HungStar(name, per_node, python)
    with contextlib.closing(job):
        job.launch(size)
        yield job


def run(*command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """Run a command to its end."""
    return subprocess.run(
        command,
        env=environment or clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S + 40,
        check=False,
    )


def diagnose(files: Sequence[Path], *options: str) -> subprocess.CompletedProcess[str]:
    return run(*WATCHTOWER, "diagnose", *map(str, files), *options)
