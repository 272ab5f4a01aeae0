"""Samples a running thread by the software clock of perf, which stops nothing.

The kernel writes the registers that the thread has in user space and the top of its stack to a ring
buffer, every 0.5 ms of its CPU time. Standard library only.

Source: perf_event_open(2), and include/uapi/linux/perf_event.h and asm/perf_regs.h of Linux 6.6.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Iterator
from typing import NamedTuple

SAMPLED_STACK_BYTES = 1024
"""Bytes of stack in each sample."""

PERIOD_NS = 500_000
"""Nanoseconds of CPU time between two samples."""

RING_PAGES = 8
"""Pages of a ring buffer, a power of two: 29 samples. An ordinary user may lock 516 kB for perf for
each processor of the node."""


class PerfError(OSError):
    """The kernel does not allow to sample this thread."""


class Sample(NamedTuple):
    """One sample of a thread: its registers in user space, by DWARF numbers, and its stack."""

    pc: int
    registers: dict[int, int]
    stack: bytes
    """From the stack pointer on."""


class Machine(NamedTuple):
    """Constants that differ between processors. `registers`: perf's numbers with DWARF's."""

    call_number: int
    pc: int
    registers: dict[int, int]


_MACHINES = {
    "x86_64": Machine(298, 8, {1: 3, 6: 6, 7: 7, 20: 12, 21: 13, 22: 14, 23: 15}),
    "aarch64": Machine(241, 32, {number: number for number in range(19, 32)}),
}
MACHINE = _MACHINES.get(platform.machine())

_SOFTWARE, _TASK_CLOCK = 1, 1
_REGISTERS, _STACK = 1 << 12, 1 << 13
_EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8
_ATTRIBUTES = 112
_SAMPLE = 9
_64_BIT = 2
_HEADER = struct.Struct("=IHH")
_HEAD_AT, _TAIL_AT = 1024, 1032


def find_sampling_error() -> str:
    """Return why this process may not sample running threads; empty if it may."""
    try:
        os.close(_open_clock(0, PERIOD_NS, SAMPLED_STACK_BYTES))
    except PerfError as error:
        return str(error)
    return ""


class PerfClock:
    """The software clock of one running thread, and the ring buffer of its samples."""

    def __init__(
        self, tid: int, *, period_ns: int = PERIOD_NS, stack_bytes: int = SAMPLED_STACK_BYTES
    ) -> None:
        """`stack_bytes`: those of the stack in each sample, a multiple of 8; 0 for none.

        Raises PerfError.
        """
        self._stack_bytes, self._tail = stack_bytes, 0
        self._fd = _open_clock(tid, period_ns, stack_bytes)
        size = (1 + RING_PAGES) * mmap.PAGESIZE
        try:
            access = mmap.PROT_READ | mmap.PROT_WRITE
            self._ring = mmap.mmap(self._fd, size, mmap.MAP_SHARED, access)
        except (OSError, ValueError) as error:
            os.close(self._fd)
            raise PerfError(str(error)) from error

    def count(self) -> int:
        """Return the number of samples so far."""
        assert MACHINE is not None
        fixed = _HEADER.size + 8 * (2 + len(MACHINE.registers))
        return self._head() // (fixed + (16 + self._stack_bytes if self._stack_bytes else 0))

    def drain(self) -> list[Sample]:
        """Return the samples since the last call, and make room for more. A full ring buffer takes
        none."""
        size, head = RING_PAGES * mmap.PAGESIZE, self._head()
        at, length = self._tail % size, head - self._tail
        ring = self._ring[mmap.PAGESIZE : mmap.PAGESIZE + size]
        data = ring[at : at + length] + ring[: max(0, at + length - size)]
        self._tail = head
        struct.pack_into("=Q", self._ring, _TAIL_AT, head)
        return list(_read_samples(data))

    def close(self) -> list[Sample]:
        """End the sampling and return the samples since the last call."""
        samples = self.drain()
        self._ring.close()
        os.close(self._fd)
        return samples

    def _head(self) -> int:
        (head,) = struct.unpack_from("=Q", self._ring, _HEAD_AT)
        return int(head)


def _read_samples(data: bytes) -> Iterator[Sample]:
    at = 0
    while at + _HEADER.size <= len(data):
        kind, _, size = _HEADER.unpack_from(data, at)
        if size < _HEADER.size or at + size > len(data):
            return
        if kind == _SAMPLE and (sample := _read_sample(data[at + _HEADER.size : at + size])):
            yield sample
        at += size


def _read_sample(body: bytes) -> Sample | None:
    """Return a sample; None for a thread of the kernel or a 32-bit program."""
    assert MACHINE is not None
    order = sorted([*MACHINE.registers, MACHINE.pc])
    stack_at = 8 + 8 * len(order)
    if len(body) < stack_at or int.from_bytes(body[:8], "little") != _64_BIT:
        return None
    values = dict(zip(order, struct.unpack_from(f"={len(order)}Q", body, 8), strict=True))
    stack = _read_stack(body[stack_at:])
    registers = {dwarf: values[number] for number, dwarf in MACHINE.registers.items()}
    return Sample(values[MACHINE.pc], registers, stack)


def _read_stack(body: bytes) -> bytes:
    """Return the copy of the stack in a sample: its size, the bytes, and how many are valid."""
    if len(body) < 16:
        return b""
    (size,) = struct.unpack_from("=Q", body)
    if not size or len(body) < 16 + size:
        return b""
    (valid,) = struct.unpack_from("=Q", body, 8 + size)
    return body[8 : 8 + min(size, valid)]


def _open_clock(tid: int, period_ns: int, stack_bytes: int) -> int:
    """Open the clock, with the time in the kernel if that is allowed: a thread that yields all the
    time is seldom elsewhere. The kernel itself is not sampled.
    """
    if MACHINE is None:
        raise PerfError(f"not supported on {platform.machine()}")
    try:
        return _call(MACHINE, tid, _EXCLUDE_HYPERVISOR, period_ns, stack_bytes)
    except PerfError:
        return _call(MACHINE, tid, _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR, period_ns, stack_bytes)


def _call(machine: Machine, tid: int, flags: int, period_ns: int, stack_bytes: int) -> int:
    mask = sum(1 << number for number in (*machine.registers, machine.pc))
    attributes = bytearray(_ATTRIBUTES)
    kinds = _REGISTERS | (_STACK if stack_bytes else 0)
    struct.pack_into("=IIQQQ", attributes, 0, _SOFTWARE, _ATTRIBUTES, _TASK_CLOCK, period_ns, kinds)
    struct.pack_into("=Q", attributes, 40, flags)
    struct.pack_into("=QI", attributes, 80, mask, stack_bytes)
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_char * _ATTRIBUTES).from_buffer(attributes)
    fd = libc.syscall(machine.call_number, buffer, tid, -1, -1, _CLOSE_ON_EXEC)
    if fd < 0:
        raise PerfError(os.strerror(ctypes.get_errno()))
    return int(fd)
