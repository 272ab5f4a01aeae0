"""A network of its own for every rank: namespaces joined by a bridge, whose links can be cut.

Run by path: python -I network.py RANKS, as root. No namespace gets a name: each lives as long as a
process in it does, and all of these die with this one, so nothing can be left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
LINK = "eth0"
BRIDGE = "bridge0"

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Build the network, wait to be ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    leave_network()
    for words in ("link set lo up", f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up"):
        ip(words)
    residents = [settle(rank) for rank in range(int(sys.argv[1]))]
    addresses = [address_of(rank) for rank in range(len(residents))]
    built = {"pids": residents, "addresses": addresses, "link": LINK}
    built |= {"bridge": BRIDGE, "bridge_pid": os.getpid()}
    print("ready", json.dumps(built), flush=True)
    signal.sigwait({signal.SIGTERM})
    for pid in residents:
        os.kill(pid, signal.SIGKILL)


def settle(rank: int) -> int:
    """Start a process in a namespace of its own with a link to the bridge; return its pid."""
    to_child, from_parent = os.pipe()
    from_child, to_parent = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(from_parent)
        live_in_network(rank, to_child, to_parent)
    os.close(to_child)
    os.close(to_parent)
    wait_for(from_child)
    ip(f"link add port{rank} type veth peer name {LINK} netns {pid}")
    ip(f"link set port{rank} master {BRIDGE} up")
    os.write(from_parent, b".")
    wait_for(from_child)
    return pid


def live_in_network(rank: int, told: int, tell: int) -> None:
    """In the child: leave the bridge's namespace, bring the link up, stay."""
    with contextlib.suppress(BaseException):
        _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        leave_network()
        os.write(tell, b".")
        wait_for(told)
        ip("link set lo up")
        ip(f"addr add {address_of(rank)}/16 dev {LINK}")
        ip(f"link set {LINK} up")
        os.write(tell, b".")
        while True:
            signal.pause()
    os._exit(1)


def wait_for(pipe: int) -> None:
    """Wait for the other side; exits where it has ended instead."""
    if not os.read(pipe, 1):
        sys.exit("a network namespace could not be set up")


def leave_network() -> None:
    """Move this process into a new network namespace."""
    if _libc.unshare(CLONE_NEWNET) == -1:
        reason = os.strerror(ctypes.get_errno())
        sys.exit(f"cannot make a network namespace: {reason}; this needs root")


def address_of(rank: int) -> str:
    """Where a rank listens."""
    return f"10.88.{(rank + 1) // 256}.{(rank + 1) % 256}"


def ip(words: str) -> None:
    """Run `ip`; exits with what it says where it fails."""
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"ip {words}: {done.stderr.strip()}")


if __name__ == "__main__":
    main()
