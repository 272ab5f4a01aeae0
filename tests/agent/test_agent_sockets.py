"""Connections of a process: how they are described, and one that nobody answers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.dumpers.kernel_state import read_kernel_wait
from agent.dumpers.sockets import SocketTables
from agent.procfs import Proc

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid inode\n"
MASTER = "0100000A:733C"
"""10.0.0.1:29500."""


def a_line(inode: int, *, state: str = "02", retries: int = 3) -> str:
    """A line of /proc/PID/net/tcp as the kernel writes it."""
    return (
        f"   0: 0200000A:A028 {MASTER} {state} 00000001:00000000 01:00000A1E {retries:08X} "
        f" 1000        0 {inode} 2 0000000000000000 800 0 0 1 7\n"
    )


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """A /proc with one process that polls one descriptor and has the sockets 11 and 12."""
    process = tmp_path / "proc" / "7"
    for folder in (process / "net", process / "fd"):
        folder.mkdir(parents=True)
    for number, inode in ((3, 11), (4, 12)):
        os.symlink(f"socket:[{inode}]", process / "fd" / str(number))
    numbers = " ".join(["0"] * 46)
    (process / "stat").write_text(f"7 (python) S 1 7 7 {numbers}\n")
    (process / "syscall").write_text("7 0x7ffd00 0x1 0xffffffff 0x0 0x0 0x0 0x7ffd 0x7f00\n")
    return Proc(str(tmp_path))


def connect(proc: Proc, *lines: str) -> None:
    Path(proc.file(7, "net/tcp")).write_text(HEAD + "".join(lines))


def test_a_connection_that_nobody_answers_is_found(proc: Proc) -> None:
    connect(proc, a_line(12))
    text = "tcp 10.0.0.2:41000 -> 10.0.0.1:29500 unanswered"
    assert SocketTables(proc).find_unanswered(7) == text
    assert SocketTables(proc).describe(7, 12) == text
    assert read_kernel_wait(proc, 7).target == text


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(a_line(12, retries=2), id="sent_again_twice"),
        pytest.param(a_line(12, state="01"), id="established"),
        pytest.param(a_line(13), id="of_another_process"),
        pytest.param(a_line(12)[:75], id="cut"),
        pytest.param("", id="none"),
    ],
)
def test_other_connections_are_answered_as_far_as_one_knows(proc: Proc, line: str) -> None:
    connect(proc, line)
    assert SocketTables(proc).find_unanswered(7) == ""
    assert read_kernel_wait(proc, 7).target == ""


def test_a_call_that_does_not_wait_for_it_has_no_target(proc: Proc) -> None:
    connect(proc, a_line(12))
    Path(proc.file(7, "syscall")).write_text("202 0x7ffd00 0x1 0x0 0x0 0x0 0x0 0x7ffd 0x7f00\n")
    assert read_kernel_wait(proc, 7).target == ""


def test_a_process_without_tables_has_none(proc: Proc) -> None:
    assert SocketTables(proc).find_unanswered(7) == ""
