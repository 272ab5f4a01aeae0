"""When a system call ends by itself, by its arguments."""

from __future__ import annotations

import platform
import struct
import time

import pytest

from agent.dumpers.native_child import find_end

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers are of x86-64")

AT = 0x7000
FUTEX, CLOCK_NANOSLEEP, NANOSLEEP, EPOLL_WAIT = 202, 230, 35, 232
PRIVATE, REAL_TIME = 0x80, 0x100


def words(number: int, *arguments: int) -> list[bytes]:
    six = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    return [b"%d" % number, *(b"0x%x" % each for each in six), b"0x7ffd00", b"0x7f00"]


def end_of(call: list[bytes], clock: int, left_s: float) -> float | None:
    until = time.clock_gettime(clock) + left_s
    memory = struct.pack("=qq", int(until), int(until % 1 * 1e9))
    return find_end(call, lambda address, size: memory[:size] if address == AT else b"")


@pytest.mark.parametrize(
    ("call", "clock"),
    [
        (words(CLOCK_NANOSLEEP, time.CLOCK_MONOTONIC, 1, AT), time.CLOCK_MONOTONIC),
        (words(CLOCK_NANOSLEEP, time.CLOCK_REALTIME, 1, AT), time.CLOCK_REALTIME),
        (words(FUTEX, 0x5000, 9 | PRIVATE, 0, AT), time.CLOCK_MONOTONIC),
        (words(FUTEX, 0x5000, 9 | PRIVATE | REAL_TIME, 0, AT), time.CLOCK_REALTIME),
        (words(FUTEX, 0x5000, 6, 0, AT), time.CLOCK_REALTIME),
    ],
)
def test_a_call_with_a_time_of_a_clock_ends_then(call, clock):
    assert end_of(call, clock, 40) == pytest.approx(40, abs=5)
    assert end_of(call, clock, -1) is None
    assert end_of(call, clock, 1e12) is None


@pytest.mark.parametrize(
    "call",
    [
        words(FUTEX, 0x5000, 9 | PRIVATE, 0, 0),  # without a timeout
        words(FUTEX, 0x5000, 0 | PRIVATE, 0, AT),  # relative
        words(CLOCK_NANOSLEEP, time.CLOCK_MONOTONIC, 0, AT),  # relative
        words(CLOCK_NANOSLEEP, 42, 1, AT),
        words(CLOCK_NANOSLEEP, time.CLOCK_MONOTONIC, 1, 0x9000),  # it cannot be read
        words(NANOSLEEP, AT),
        words(EPOLL_WAIT, 3, AT, 1, 5000),
        [b"-1", b"0x7ffd00", b"0x7f00"],
        [b"running"],
    ],
)
def test_of_other_calls_it_is_not_known(call):
    assert end_of(call, time.CLOCK_MONOTONIC, 40) is None
