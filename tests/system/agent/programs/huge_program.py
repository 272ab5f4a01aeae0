"""A training process whose program, by its own headers, has 1.2 GB of data for py-spy to search.

`huge_program.py forge TARGET` writes a copy of the running Python to TARGET: an ELF file whose
section .bss lies far away. Run by that copy, this program maps zeros there and makes the number of
its version unreadable, so that a dump has to search .bss for it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import time

SIZE = 1200 << 20
FAR = 1 << 40
PAGE = 4096
READ, WRITE = 1, 2
PRIVATE, FIXED, ANONYMOUS, NORESERVE = 0x2, 0x10, 0x20, 0x4000
POSITION_INDEPENDENT = 3


def forge(target: str) -> None:
    """Write a copy of this Python with a huge .bss."""
    with open(os.path.realpath(sys.executable), "rb") as file:
        image = bytearray(file.read())
    (sections,) = struct.unpack_from("=Q", image, 0x28)
    entry, count, names = struct.unpack_from("=HHH", image, 0x3A)
    (strings,) = struct.unpack_from("=Q", image, sections + names * entry + 0x18)
    for at in range(sections, sections + count * entry, entry):
        (name,) = struct.unpack_from("=I", image, at)
        if image[strings + name : strings + name + 5] == b".bss\0":
            struct.pack_into("=Q", image, at + 0x10, FAR)
            struct.pack_into("=Q", image, at + 0x20, SIZE)
    with open(target, "wb") as file:
        file.write(image)
    os.chmod(target, 0o755)


def pretend() -> None:
    """Be what the headers say, and wait."""
    program = os.readlink("/proc/self/exe")
    with open(program, "rb") as file:
        (kind,) = struct.unpack("=H", file.read(18)[16:])
    with open("/proc/self/maps", encoding="utf-8") as maps:
        first = next(line for line in maps if line.rstrip().endswith(program))
    base = int(first.partition("-")[0], 16) if kind == POSITION_INDEPENDENT else 0
    libc = ctypes.CDLL(None)
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.mmap.restype = ctypes.c_void_p
    flags = PRIVATE | FIXED | ANONYMOUS | NORESERVE
    if libc.mmap(base + FAR, SIZE, READ, flags, -1, 0) != base + FAR:
        sys.exit("no address space for it")
    version = ctypes.addressof(ctypes.c_ulong.in_dll(ctypes.pythonapi, "Py_Version"))
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mprotect(version & ~(PAGE - 1), 2 * PAGE, READ | WRITE)
    ctypes.memset(version, 0, ctypes.sizeof(ctypes.c_ulong))
    print("ready", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    if sys.argv[1:2] == ["forge"]:
        forge(sys.argv[2])
    else:
        pretend()
