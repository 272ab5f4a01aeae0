"""Reads the memory of another process by process_vm_readv(2). Standard library only.

Not by /proc/PID/mem: that holds the lock of the target's mappings while it loads a page of a file.
If the file system does not answer, the target hangs at its next mmap. Tried on Linux 6.18 with a
FUSE mount without an answer: the reader hangs in both ways, the target only with /proc/PID/mem.
"""

from __future__ import annotations

import ctypes
import mmap
import os


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
