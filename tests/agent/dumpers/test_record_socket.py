"""Asking for collective records: sockets that mean harm."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agent.dumpers import flight_recorder
from agent.dumpers.flight_recorder import (
    FROZEN,
    LATE,
    MAX_ANSWER_BYTES,
    MISSING,
    SILENT,
    STOPPED,
    ask_recorders,
)
from agent.procfs import Proc
from tests.agent.dumpers.record_listeners import EMPTY, RUNS, Listen, failure_of
from tests.waiting import PATIENCE_S
from watchtower.wire.dumps import KernelWait
from watchtower.wire.report import ProcessState

ABSENT = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder on a disk: a socket below /dev, where `make test` has its files, is refused."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


def test_both_recorders_are_asked(listen: Listen) -> None:
    listener = listen(EMPTY, EMPTY)
    asked = ask_recorders(Proc(), os.getpid(), listener.path, RUNS, time.monotonic() + PATIENCE_S)
    assert asked.failure == ""
    assert [recorder for recorder, _ in asked.records] == ["gloo", "nccl"]
    lines = [request.partition(b"\r\n")[0] for request in listener.requests]
    assert lines == [
        b"POST /handler/fr_trace_json HTTP/1.1",
        b"POST /handler/dump_nccl_trace_json HTTP/1.1",
    ]


def test_a_torch_that_lacks_one_of_the_recorders_is_no_failure(listen: Listen) -> None:
    for answers in ((EMPTY, ABSENT), (ABSENT, EMPTY)):
        path = listen(*answers).path
        asked = ask_recorders(Proc(), os.getpid(), path, RUNS, time.monotonic() + PATIENCE_S)
        assert (asked.failure, len(asked.records)) == ("", 1)


def test_one_recorder_that_talks_nonsense_does_not_cost_the_other(listen: Listen) -> None:
    nonsense = EMPTY.replace(b"[]", b"{}")
    path = listen(nonsense, EMPTY).path
    asked = ask_recorders(Proc(), os.getpid(), path, RUNS, time.monotonic() + PATIENCE_S)
    assert "not understood" in asked.failure
    assert [recorder for recorder, _ in asked.records] == ["nccl"]


@pytest.mark.usefixtures("short_deadline")
def test_a_socket_that_accepts_and_never_answers(listen: Listen) -> None:
    assert failure_of(listen().path) == SILENT


@pytest.mark.usefixtures("short_deadline")
def test_a_slow_drip_ends_at_the_deadline(listen: Listen) -> None:
    assert failure_of(listen(EMPTY, EMPTY, drip_s=0.1).path) == SILENT


def test_a_socket_whose_queue_is_full(tmp_path: Path) -> None:
    path = str(tmp_path / "full")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as callers:
        listener.bind(path)
        listener.listen(0)
        for _ in range(2):
            caller = callers.enter_context(socket.socket(socket.AF_UNIX))
            caller.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                caller.connect(path)
        assert failure_of(path) == SILENT


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "closed the connection"),
        (EMPTY[:-3], "closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not answer in HTTP"),
        (b"x" * 20_000, "does not answer in HTTP"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9999, "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: y\r\n" * 9999, "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 999, "does not answer in HTTP"),
        (b"HTTP/1.1 500 Oops\r\n\r\n", "status 500"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "no Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", f"{MAX_ANSWER_BYTES}"),
    ],
)
def test_what_is_not_torchs_own_answer_is_said(listen: Listen, answer: bytes, text: str) -> None:
    assert text in failure_of(listen(answer, answer).path)


@pytest.mark.parametrize(
    ("state", "frozen", "text"),
    [("T", False, STOPPED), ("t", False, STOPPED), ("D", True, FROZEN), ("Z", False, "")],
)
def test_who_cannot_answer_is_not_asked(
    listen: Listen, state: str, frozen: bool, text: str
) -> None:
    listener = listen(EMPTY)
    assert failure_of(listener.path, KernelWait(state=ProcessState(state), frozen=frozen)) == text
    assert listener.requests == []


def test_one_in_uninterruptible_sleep_is_asked(listen: Listen) -> None:
    path = listen(EMPTY, EMPTY).path
    assert failure_of(path, KernelWait(state=ProcessState.UNINTERRUPTIBLE)) == ""


def test_a_round_without_time_asks_nobody(listen: Listen) -> None:
    asked = ask_recorders(Proc(), os.getpid(), listen().path, RUNS, time.monotonic())
    assert asked.failure == LATE


def test_paths_that_lead_astray_are_refused(listen: Listen, tmp_path: Path) -> None:
    good = listen(EMPTY, EMPTY).path
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    refused = "not used"
    assert "absolute path" in failure_of("socket-0")
    assert "absolute path" in failure_of(str(tmp_path / ".." / tmp_path.name / "socket-0"))
    for name in ("file", "pipe"):
        assert "not a socket of the process's user" in failure_of(str(tmp_path / name))
    assert refused in failure_of(str(tmp_path / "loop"))
    assert "a file system that may hang" in failure_of("/proc/self/root/x")
    assert failure_of(str(tmp_path / "nothing")) == MISSING
    assert failure_of(good) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket to another user")
def test_a_socket_of_another_user_is_refused(listen: Listen) -> None:
    path = listen(EMPTY).path
    os.chown(path, 65534, 65534)
    assert "not a socket of the process's user" in failure_of(path)


def test_a_link_is_followed_inside_of_the_process_root(listen: Listen, tmp_path: Path) -> None:
    path = Path(listen(EMPTY, EMPTY).path)
    (tmp_path / "link").symlink_to(tmp_path)
    assert failure_of(str(tmp_path / "link" / path.name)) == ""


def test_refused_permission_is_a_sentence() -> None:
    text = flight_recorder.explain(PermissionError(13, "Permission denied"))
    assert "CAP_SYS_PTRACE" in text
    assert "0666" in text
