"""Sockets of this process that answer like the recorders of a rank, and requests to them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.dumpers import flight_recorder
from agent.dumpers.flight_recorder import ask_recorders
from agent.procfs import Proc
from tests.waiting import PATIENCE_S
from watchtower.wire.dumps import KernelWait
from watchtower.wire.report import ProcessState

RUNS = KernelWait(state=ProcessState.SLEEPING)
EMPTY = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"entries":[]}'


class Listener:
    """A socket of this process that sends one of `answers` for each request. It may have none."""

    def __init__(self, path: Path, *answers: bytes, drip_s: float = 0.0) -> None:
        self.path = str(path)
        self.requests: list[bytes] = []
        self._answers, self._drip_s = list(answers), drip_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.path)
        self._socket.listen(8)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        if answers:
            self._thread.start()

    def _serve(self) -> None:
        while self._answers:
            with contextlib.suppress(OSError):
                connection, _ = self._socket.accept()
                with connection:
                    if self._stopping.is_set():
                        return
                    self.requests.append(connection.recv(4096))
                    self._send(connection, self._answers.pop(0))

    def _send(self, connection: socket.socket, answer: bytes) -> None:
        if not self._drip_s:
            connection.sendall(answer)
            return
        for at in range(len(answer)):
            connection.sendall(answer[at : at + 1])
            if self._stopping.wait(self._drip_s):
                return

    def close(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as caller:
                caller.connect(self.path)
            self._thread.join(PATIENCE_S)
        self._socket.close()


Listen = Callable[..., Listener]


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Listen]:
    """Open a socket that sends these answers; all are closed after the test."""
    listeners: list[Listener] = []

    def make(*answers: bytes, drip_s: float = 0.0) -> Listener:
        path = tmp_path / f"socket-{len(listeners)}"
        listeners.append(Listener(path, *answers, drip_s=drip_s))
        return listeners[-1]

    yield make
    for each in listeners:
        each.close()


@pytest.fixture
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait 0.3 s for a recorder's answer."""
    monkeypatch.setattr(flight_recorder, "RECORDS_DEADLINE_S", 0.3)


def failure_of(path: str, kernel: KernelWait = RUNS, pid: int = os.getpid()) -> str:
    """Ask for the records of `pid`, in bounded time. Return why they cannot be read, or ""."""
    began = time.monotonic()
    asked = ask_recorders(Proc(), pid, path, kernel, began + PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S / 2
    return asked.failure
