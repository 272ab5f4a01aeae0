"""Connections of a process: how they are described, and one that nobody answers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agent.dumpers.kernel_state import SocketTables
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
    """A /proc with one process that has the sockets 11 and 12."""
    process = tmp_path / "proc" / "7"
    for folder in (process / "net", process / "fd"):
        folder.mkdir(parents=True)
    for number, inode in ((3, 11), (4, 12)):
        os.symlink(f"socket:[{inode}]", process / "fd" / str(number))
    return Proc(str(tmp_path))


def connect(proc: Proc, *lines: str) -> None:
    Path(proc.file(7, "net/tcp")).write_text(HEAD + "".join(lines))


UNANSWERED = "tcp 10.0.0.2:41000 -> 10.0.0.1:29500 unanswered"


def test_a_connection_that_nobody_answers_is_described(proc: Proc) -> None:
    connect(proc, a_line(12))
    assert SocketTables(proc).describe(7, 12) == UNANSWERED


@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param(a_line(12, retries=2), UNANSWERED[: -len(" unanswered")], id="sent_twice"),
        pytest.param(a_line(12, state="01"), UNANSWERED[: -len(" unanswered")], id="established"),
        pytest.param(a_line(13), "", id="of_another_process"),
        pytest.param(a_line(12)[:75], "", id="cut"),
        pytest.param("", "", id="none"),
    ],
)
def test_other_connections_are_answered_as_far_as_one_knows(
    proc: Proc, line: str, text: str
) -> None:
    connect(proc, line)
    assert SocketTables(proc).describe(7, 12) == text


def test_a_process_without_tables_has_none(proc: Proc) -> None:
    assert SocketTables(proc).describe(7, 12) == ""


def test_a_large_table_costs_its_first_socket_only(proc: Proc) -> None:
    connect(proc, *(a_line(12_000 + number) for number in range(500)))
    tables, calls = SocketTables(proc), 0
    assert tables.describe(7, 12_345) == UNANSWERED

    def note(_frame: object, _event: str, _argument: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(note)
    try:
        # Its digits are in every line of the table.
        found = tables.describe(7, 12)
    finally:
        sys.setprofile(None)
    assert found == ""
    assert calls < 100
