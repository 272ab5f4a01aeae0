"""Other exporters of a node, beside which `benchmarks/agent.py` measures the agent.

Each of them is started as its users start it, and scraped as often as the agent. One that is not
installed is left out, with the reason.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

SCRAPES_S = 15.0
"""Seconds between two scrapes: Prometheus' usual interval."""

MAX_BYTES = 4 << 20
"""Bytes of one scrape. A node exporter has some 100 kB."""

ENDS_S = 10.0


class Peer(NamedTuple):
    """An exporter."""

    name: str
    command: tuple[str, ...]
    """Without the address; `{port}` is replaced."""
    install: str
    reads_gpus: bool


PEERS = (
    Peer(
        "nvitop-exporter",
        ("nvitop-exporter", "--bind-address", "127.0.0.1", "--port", "{port}"),
        "pip install nvitop-exporter",
        reads_gpus=True,
    ),
    Peer(
        "node-exporter",
        ("prometheus-node-exporter", "--web.listen-address=127.0.0.1:{port}"),
        "apt-get install prometheus-node-exporter",
        reads_gpus=False,
    ),
)


class Running(NamedTuple):
    """An exporter that runs."""

    name: str
    pid: int
    address: str


def find_program(name: str) -> str | None:
    """Return the path of a program, also of one beside this Python."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return shutil.which(name, path=os.pathsep.join(folders))


@contextlib.contextmanager
def running_peers(environment: Mapping[str, str], *, gpus: bool) -> Iterator[list[Running]]:
    """Run all exporters that are installed. `environment`: where the library of the driver is."""
    found, children = [], []
    try:
        for peer in PEERS:
            program = find_program(peer.command[0])
            if peer.reads_gpus and not gpus:
                continue
            if program is None:
                print(f"  {peer.name:<16} left out: not installed ({peer.install})", flush=True)
                continue
            port = find_port()
            words = [word.format(port=port) for word in peer.command[1:]]
            child = subprocess.Popen(
                [program, *words],
                env=dict(os.environ) | dict(environment),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            children.append(child)
            found.append(Running(peer.name, child.pid, f"127.0.0.1:{port}"))
        yield found
    finally:
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(ENDS_S)


@contextlib.contextmanager
def scraping(addresses: Sequence[str]) -> Iterator[dict[str, int]]:
    """Scrape all addresses again and again. Yields how often each one has answered."""
    answers = dict.fromkeys(addresses, 0)
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.is_set():
            for address in addresses:
                with contextlib.suppress(OSError):
                    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
                        answer.read(MAX_BYTES)
                    answers[address] += 1
            is_over.wait(SCRAPES_S)

    thread = threading.Thread(target=scrape, name="scrapes", daemon=True)
    thread.start()
    try:
        yield answers
    finally:
        is_over.set()
        thread.join()


def find_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
