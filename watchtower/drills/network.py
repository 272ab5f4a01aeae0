"""Ranks in network namespaces, so that one can vanish without a word: its link is cut first.

Without it a killed rank's kernel resets the connections, and peers on gloo raise instead of
waiting as NCCL's do.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from watchtower.drills.errors import DrillError

PORT = 29500
"""Nobody else listens in these namespaces."""
NEEDED = ("ip", "nsenter", "unshare")
COMMAND_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Network:
    """What `fixtures/network.py` has built: a resident process and an address for each rank."""

    pids: list[int]
    addresses: list[str]
    link: str
    bridge: str
    bridge_pid: int
    """A process where the bridge is that joins the links."""

    def enter(self, rank: int) -> list[str]:
        """What a command has to begin with to run where the rank's link is."""
        return ["nsenter", f"--net=/proc/{self.pids[rank]}/ns/net"]

    @property
    def environment(self) -> dict[str, str]:
        """Where ranks meet, and by which link."""
        return {
            "MASTER_ADDR": self.addresses[0],
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": self.link,
        }

    def cut(self, rank: int) -> None:
        """Take the rank's link down: nothing it sends from now on arrives."""
        command = [*self.enter(rank), "ip", "link", "set", self.link, "down"]
        _run(command)

    def cut_all(self) -> None:
        """Take the bridge down: from this moment on nothing that any rank sends arrives."""
        enter = ["nsenter", f"--net=/proc/{self.bridge_pid}/ns/net"]
        _run([*enter, "ip", "link", "set", self.bridge, "down"])


def why_no_network() -> str | None:
    """Why network namespaces cannot be had here; None where they can."""
    for program in NEEDED:
        if shutil.which(program) is None:
            return f"`{program}` is not installed"
    try:
        _run(["unshare", "--net", "true"])
    except DrillError as error:
        return str(error)
    return None


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S, check=False
    )
    if done.returncode:
        raise DrillError(f"{' '.join(command)}: {done.stderr.strip()}")
