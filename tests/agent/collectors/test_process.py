"""Rates and bytes from what /proc says, by value."""

from __future__ import annotations

import pytest

from agent.collectors.process import (
    Counters,
    parse_io,
    rates_between,
)
from watchtower.wire.report import Movement


def test_rates_are_differences_over_time() -> None:
    before = Counters(at=10.0, cpu_s=1.0, read_bytes=0, write_bytes=100)
    after = Counters(at=12.0, cpu_s=2.0, read_bytes=50, write_bytes=100)
    assert rates_between(before, after) == Movement(cpu_cores=0.5, read_bytes_per_s=25.0)


def test_bytes_that_may_not_be_read_are_said_to_be_unknown() -> None:
    closed = Counters(at=12.0, cpu_s=2.0, read_bytes=None, write_bytes=None)
    before = Counters(at=10.0, cpu_s=1.0, read_bytes=None, write_bytes=None)
    assert not rates_between(before, closed).io_readable


def test_bytes_are_read_from_their_lines() -> None:
    lines = [b"rchar: 1", b"wchar: 2", b"syscr: 3", b"syscw: 4"]
    lines += [b"read_bytes: 50", b"write_bytes: 60"]
    assert parse_io(b"\n".join([*lines, b"cancelled_write_bytes: 0", b""])) == (50, 60)
    with pytest.raises(ValueError, match="proc"):
        parse_io(b"\n".join(lines[1:]))
