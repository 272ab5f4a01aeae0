"""Ranks in network namespaces. A rank's link can be cut, so that peers do not see its death.

Otherwise the kernel of a killed rank resets its connections. Peers on gloo then raise instead of
waiting, unlike peers on NCCL.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from watchtower.drills.errors import DrillError

PORT = 29500
"""No other process listens in these namespaces."""
NEEDED = ("ip", "nsenter", "unshare")
COMMAND_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Network:
    """The result of `fixtures/network.py`: a process in each namespace, and an address for each
    rank.
    """

    pids: list[int]
    addresses: list[str]
    link: str
    bridge: str
    bridge_pid: int
    """A process in the namespace of the bridge that joins the links."""

    def enter(self, rank: int) -> list[str]:
        """Return the start of a command that runs in the rank's network namespace."""
        return ["nsenter", f"--net=/proc/{self.pids[rank]}/ns/net"]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables with the master address and the link."""
        return {
            "MASTER_ADDR": self.addresses[0],
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": self.link,
        }

    def cut(self, rank: int) -> None:
        """Cut the rank's link: nothing that it sends from now on arrives."""
        command = [*self.enter(rank), "ip", "link", "set", self.link, "down"]
        _run(command)

    def cut_all(self) -> None:
        """Cut the bridge: nothing that any rank sends from now on arrives."""
        enter = ["nsenter", f"--net=/proc/{self.bridge_pid}/ns/net"]
        _run([*enter, "ip", "link", "set", self.bridge, "down"])

    def lower_mtu(self, rank: int, mtu: int) -> None:
        """Let the rank's interface accept no larger packets than these. Its peers go on sending
        larger ones, because each connection has agreed on their size at its start.
        """
        for each in range(len(self.pids)):
            # Else the kernel hands over many packets as one, whose size no interface checks.
            _run([*self.enter(each), "ip", "link", "set", self.link, "gso_max_segs", "1"])
        _run([*self.enter(rank), "ip", "link", "set", self.link, "mtu", str(mtu)])


def why_no_network() -> str | None:
    """Return why network namespaces cannot be used here; None if they can."""
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
