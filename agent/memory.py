"""Reads the memory of another process by process_vm_readv(2). Standard library only.

Not by /proc/PID/mem: that holds the lock of the target's mappings while it loads a page of a file.
If the file system does not answer, the target hangs at its next mmap. Tried on Linux 6.18 with a
FUSE mount without an answer: the reader hangs in both ways, the target only with /proc/PID/mem.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator
from typing import NamedTuple


class _Piece(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.process_vm_readv.restype = ctypes.c_ssize_t
_LIBC.process_vm_readv.argtypes = (
    *(ctypes.c_int, ctypes.POINTER(_Piece), ctypes.c_ulong),
    *(ctypes.POINTER(_Piece), ctypes.c_ulong, ctypes.c_ulong),
)


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Return at most `size` bytes, fewer at the end of a mapping. Raises OSError."""
    buffer = ctypes.create_string_buffer(size)
    pieces = _split_by_page(address, size)
    local = _Piece(ctypes.cast(buffer, ctypes.c_void_p), size)
    number = _LIBC.process_vm_readv(pid, ctypes.byref(local), 1, pieces, len(pieces), 0)
    if number < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return buffer.raw[:number]


def _split_by_page(address: int, size: int) -> ctypes.Array[_Piece]:
    """The kernel copies only whole pieces; so a piece ends with its page."""
    end = address + size
    starts = [address, *range((address // mmap.PAGESIZE + 1) * mmap.PAGESIZE, end, mmap.PAGESIZE)]
    ends = [*starts[1:], end]
    pieces = [_Piece(start, until - start) for start, until in zip(starts, ends, strict=True)]
    return (_Piece * len(pieces))(*pieces)


MAX_MAPS_BYTES = 8 << 20
"""Bytes of one memory map. A process with torch has 60 kB, one with many files some hundred."""

GENERATED = "[generated]"
"""Executable memory without a file: code made at run time."""

OF_THE_KERNEL = ("[vdso]", "[vsyscall]", "[uprobes]")
"""Mappings without a file that are not generated: a process can name its own "[anon:NAME]"."""

NOT_FILES = ("/memfd:", "/dev/zero", "/SYSV")
"""Beginnings of paths of memory without a file."""

DELETED = " (deleted)"
"""The words that the kernel adds to the path of a library that was replaced since it was loaded."""


class Mapping(NamedTuple):
    """One executable part of an address space."""

    start: int
    end: int
    name: str
    base: int
    """Address of the beginning of its file, with the ELF header; 0 if that is not mapped."""


class Maps:
    """The executable mappings of a process, from /proc/PID/maps."""

    def __init__(self, text: str) -> None:
        self._items = sorted(_parse(text))
        self._starts = [item.start for item in self._items]

    def find(self, address: int) -> Mapping | None:
        """Return the mapping that contains an address."""
        at = bisect.bisect_right(self._starts, address) - 1
        return self._items[at] if at >= 0 and address < self._items[at].end else None

    def name_of(self, address: int) -> str:
        """Return the name of the mapping that contains an address; empty if none does."""
        found = self.find(address)
        return found.name if found else ""


def read_maps(folder: str) -> Maps:
    """Return the mappings of a process, by its folder in /proc. Raises OSError. It may hang."""
    with open(f"{folder}/maps", "rb") as file:
        return Maps(file.read(MAX_MAPS_BYTES).decode("utf-8", "replace"))


def _parse(text: str) -> Iterator[Mapping]:
    bases: dict[str, int] = {}
    for line in text.split("\n"):
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        path = fields[5] if len(fields) > 5 else ""
        first, _, last = fields[0].partition("-")
        with contextlib.suppress(ValueError):
            start, end, offset = int(first, 16), int(last, 16), int(fields[2], 16)
            if offset == 0 and path:
                bases[path] = start
            if "x" in fields[1]:
                yield Mapping(start, end, _name(path), bases.get(path, 0))


def _name(path: str) -> str:
    """Return the base name of a mapping, with its package: "numpy.libs/libopenblas.so"."""
    if path in OF_THE_KERNEL:
        return path
    if not path.startswith("/") or path.startswith(NOT_FILES):
        return GENERATED
    folder, name = os.path.split(path.removesuffix(DELETED))
    package = next((p for p in reversed(folder.split("/")) if p.endswith(".libs")), "")
    return f"{package}/{name}" if package else name
