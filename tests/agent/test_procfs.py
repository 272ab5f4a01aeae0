"""Parsers of /proc, by value and against garbage."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from agent.procfs import (
    CLOCK_TICKS_PER_S,
    Proc,
    parse_command,
    parse_environ,
    parse_fields,
    parse_stat,
)


def a_stat(comm: bytes = b"python", state: bytes = b"S", ppid: int = 1, start: int = 99) -> bytes:
    fields = [b"0"] * 50
    fields[0], fields[1], fields[11], fields[12] = state, str(ppid).encode(), b"150", b"50"
    fields[13], fields[14] = b"200", b"25"
    fields[19], fields[23], fields[49] = str(start).encode(), b"4096", b"768"
    return b"7 (" + comm + b") " + b" ".join(fields) + b"\n"


@given(comm=st.binary(max_size=64))
def test_a_command_name_may_hold_brackets_spaces_and_newlines(comm: bytes) -> None:
    stat = parse_stat(a_stat(comm))
    assert stat is not None
    assert stat.comm == comm.decode("utf-8", "replace")
    assert (stat.state, stat.ppid, stat.start_time, stat.exit_code) == ("S", 1, 99, 768)
    assert (stat.cpu_s, stat.ended_children_s) == (200 / CLOCK_TICKS_PER_S, 225 / CLOCK_TICKS_PER_S)


@given(st.binary(max_size=400))
def test_any_bytes_give_a_stat_or_nothing(raw: bytes) -> None:
    parse_stat(raw)
    parse_environ(raw)
    parse_fields(raw)
    parse_command(raw)


def test_our_own_stat_is_what_the_library_says() -> None:
    stat = Proc().stat(os.getpid())
    assert stat is not None
    assert stat.ppid == os.getppid()
    assert stat.state == "R"
    assert stat.cpu_s > 0


def test_a_process_that_does_not_exist_has_no_stat() -> None:
    assert Proc().stat(2**22 + 1) is None


def test_the_first_of_two_equal_variables_counts() -> None:
    assert parse_environ(b"A=1\0B=x=y\0A=2\0\0=z\0rubbish\0") == {"A": "1", "B": "x=y"}


def test_an_argument_may_be_empty() -> None:
    assert parse_command(b"python\0\0-m\0") == ["python", "", "-m"]


def test_kernel_threads_are_told_from_processes() -> None:
    flags = a_stat().replace(b" 0 0 0 0 0", b" 0 0 0 0 2129984", 1)
    stat = parse_stat(flags)
    assert stat is not None
    assert stat.kernel_thread
    assert not Proc().stat(os.getpid()).kernel_thread  # type: ignore[union-attr]
