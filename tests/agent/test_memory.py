"""Reading memory, here of this process: that is always allowed."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

import pytest

from agent.memory import read_memory


def test_memory_is_read_across_pages():
    area = bytes(range(256)) * (3 * mmap.PAGESIZE // 256)
    held = ctypes.create_string_buffer(area, len(area))
    for start, size in ((0, 1), (5, 2 * mmap.PAGESIZE), (mmap.PAGESIZE - 1, 2), (0, len(area))):
        read = read_memory(os.getpid(), ctypes.addressof(held) + start, size)
        assert read == area[start : start + size]


def test_it_ends_with_the_mapping():
    area = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    area.write(b"x" * 2 * mmap.PAGESIZE)
    begin = ctypes.addressof(held := ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)
    second = ctypes.c_void_p(begin + mmap.PAGESIZE)
    assert libc.mprotect(second, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    try:
        assert read_memory(os.getpid(), begin + mmap.PAGESIZE - 3, 64) == b"xxx"
    finally:
        libc.mprotect(second, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE)
    del held


def test_where_nothing_is_mapped_it_fails():
    with pytest.raises(OSError, match=os.strerror(errno.EFAULT)):
        read_memory(os.getpid(), 0, 8)
