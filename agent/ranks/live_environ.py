"""Reads the environment that a process has now, from its memory.

/proc/PID/environ is the memory in which the kernel put the environment at the start. A program that
sets its title (setproctitle) writes over it, and a variable that a program sets at run time is
never there. The C library has the present environment: `environ`, a pointer to an array of
pointers.

The variable is found as the dynamic linker finds it: in the first loaded object that defines it. An
executable that is not position independent, such as Debian's python3, has a copy of its own, and
the C library uses that copy. No file is opened, so neither other mount namespaces nor replaced
libraries matter.

    /proc/PID/auxv -> program headers -> dynamic section -> list of loaded objects -> hash table

Everything read belongs to a process that may be hostile: each size and number of steps is bounded.
A read may hang at a lock of the target's mappings: read in `GuardedReads`. Nothing is stopped.

Sources: the System V ABI, chapter 5; glibc's link.h and elf/dl-lookup.c; proc_pid_auxv(5).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from agent.memory import read_memory
from agent.procfs import MAX_VARIABLES, Proc

MAX_ENVIRON_BYTES = 128 << 10
"""Bytes of one environment. Real ones have a few kB."""

MAX_VALUE_BYTES = 4096
"""Bytes of one variable, with its name. Variables with ranks and names of jobs are short."""

MAX_STRING_READS = 512
"""Reads of strings. Those of the start lie together, and each one that was set later lies alone."""

SINGLE_SIZES = (256, MAX_VALUE_BYTES)
"""Bytes of the first and of the second read of a string that lies alone."""

MAX_OBJECTS = 64
"""Loaded objects that are searched. The C library is among the first ten: libraries that were
loaded at run time are behind it.
"""

MAX_PROGRAMS = 64
"""Program headers of the executable. Usual ones have 7 to 15."""

MAX_DYNAMIC_BYTES = 4096
"""Bytes of one dynamic section. Usual ones have 30 entries of 16 bytes."""

MAX_CHAIN = 64
"""Entries of one chain of a hash table. Chains of real ones have one to ten."""

NAME = b"environ"
AT_PHDR, AT_PHENT, AT_PHNUM = 3, 4, 5
PT_DYNAMIC, PT_PHDR = 2, 6
PROGRAM, SYMBOL = struct.Struct("<IIQQQQQQ"), struct.Struct("<IBBHQQ")
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_DEBUG, DT_GNU_HASH = 4, 5, 6, 21, 0x6FFFFEF5

Read = Callable[[int, int], bytes]
"""Reads memory of the process: address, number of bytes. Fewer at the end of a mapping. Raises
OSError, and OverflowError for an address that cannot be.
"""


class NoLiveEnviron(Exception):
    """The environment cannot be read. The text is the reason, for people."""


NOT_READ = ("D", "Z", "X")
"""States of a process that is not read. In D a read may hang, the others have no memory."""

STATIC = "its program is linked statically"
UNKNOWN_LIBRARY = "its C library does not show where the environment is"
NOT_READABLE = "the agent may not read its memory"


@dataclass(frozen=True, slots=True)
class Found:
    """An environment that was read. It may contain secrets, so its repr is empty."""

    raw: bytes = field(repr=False)
    """In the form of /proc/PID/environ."""
    pointers: bytes = field(repr=False)
    """The array of pointers. A variable that is set or changed gets a new pointer."""


@dataclass(slots=True)
class LiveEnviron:
    """Where one program image has its environment, and what was there last.

    A new image (exec) needs a new object.
    """

    reads: int = 0
    """Reads of memory in the last call: its cost."""
    _variable: int = 0
    """Address of the variable `environ`; 0 until it is found."""
    _pointers: bytes = field(default=b"", repr=False)
    """The array of the environment that `keep` got last."""

    def keep(self, found: Found) -> None:
        """Note that the caller has this environment: `read` returns only one that differs.

        Not a part of `read`, because a guarded read that returns too late is dropped.
        """
        self._pointers = found.pointers

    def read_process(self, proc: Proc, pid: int, start_time: int) -> Found | None:
        """Return the environment of a process, as `read` does. This may hang.

        It is None too if the process is in state D, or another process has its pid by now.
        """
        stat = proc.stat(pid)
        if stat is None or stat.start_time != start_time or stat.state in NOT_READ:
            return None
        if proc.link_of_self() != str(os.getpid()):
            raise NoLiveEnviron("the agent has other process ids than the /proc that it reads")
        return self.read(proc.try_read(pid, "auxv", 4096), partial(read_memory, pid))

    def read(self, auxv: bytes, read: Read) -> Found | None:
        """Return the environment; None if it has not changed since `keep`.

        `auxv`: the content of /proc/PID/auxv. Raises NoLiveEnviron.
        """
        self.reads = 0

        def counted(address: int, size: int) -> bytes:
            self.reads += 1
            return read(address, size)

        try:
            if not self._variable:
                self._variable = _find_variable(auxv, counted)
            pointers = _read_pointers(counted, self._variable)
            if pointers == self._pointers:
                return None
            return Found(b"\0".join(_read_strings(counted, pointers)), pointers)
        except PermissionError as error:
            raise NoLiveEnviron(NOT_READABLE) from error
        except (OSError, OverflowError, struct.error) as error:
            raise NoLiveEnviron(UNKNOWN_LIBRARY) from error


def _find_variable(auxv: bytes, read: Read) -> int:
    """Return the address of the variable `environ`."""
    dynamic = _find_dynamic(auxv, read)
    (debug,) = struct.unpack("<Q", read(dynamic[DT_DEBUG] + 8, 8)) if dynamic[DT_DEBUG] else (0,)
    if not debug:
        raise NoLiveEnviron(STATIC)
    for base, section in _list_objects(read, debug):
        if address := _find_symbol(read, base, section):
            return address
    raise NoLiveEnviron(UNKNOWN_LIBRARY)


def _find_dynamic(auxv: bytes, read: Read) -> dict[int, int]:
    """Return the dynamic section of the program, by tag. Without one, the program is static."""
    words = dict(struct.iter_unpack("<QQ", auxv[: len(auxv) & ~15]))
    at, size, count = (words.get(tag, 0) for tag in (AT_PHDR, AT_PHENT, AT_PHNUM))
    if not at:
        raise NoLiveEnviron(NOT_READABLE)
    if size != PROGRAM.size or count > MAX_PROGRAMS:
        raise NoLiveEnviron(UNKNOWN_LIBRARY)
    addresses: dict[int, int] = {}
    for kind, _, _, address, *_ in PROGRAM.iter_unpack(read(at, size * count)):
        addresses.setdefault(kind, address)
    if PT_DYNAMIC not in addresses:
        raise NoLiveEnviron(STATIC)
    base = at - addresses[PT_PHDR] if PT_PHDR in addresses else 0
    return {DT_DEBUG: 0, **_read_section(read, base + addresses[PT_DYNAMIC])}


def _read_section(read: Read, address: int) -> dict[int, int]:
    """Return a dynamic section, by tag."""
    raw = read(address, MAX_DYNAMIC_BYTES)
    entries: dict[int, int] = {}
    for tag, value in struct.iter_unpack("<QQ", raw[: len(raw) & ~15]):
        if not tag:
            break
        entries.setdefault(tag, value)
    return entries


def _list_objects(read: Read, item: int) -> Iterator[tuple[int, dict[int, int]]]:
    """Yield the base address and the dynamic section of each loaded object, in the order in which
    the dynamic linker searches them.
    """
    for _ in range(MAX_OBJECTS):
        base, _, section, item = struct.unpack("<4Q", read(item, 32))
        yield base, _read_section(read, section) if section else {}
        if not item:
            return


def _find_symbol(read: Read, base: int, section: dict[int, int]) -> int:
    """Return the address of the variable in one object; 0 if the object does not define it."""
    if DT_SYMTAB not in section or DT_STRTAB not in section:
        return 0
    # glibc has added the base to these addresses, musl has not.
    place = {tag: value + (base if value < base else 0) for tag, value in section.items()}
    names, symbols = place[DT_STRTAB], place[DT_SYMTAB]
    try:
        for number in _candidates(read, place):
            raw = read(symbols + number * SYMBOL.size, SYMBOL.size)
            name, _, _, defined_in, value, _ = SYMBOL.unpack(raw)
            if defined_in and read(names + name, len(NAME) + 1) == NAME + b"\0":
                return base + int(value)
    except (OSError, OverflowError, struct.error):
        return 0  # this object cannot be read: another one may define it
    return 0


def _candidates(read: Read, place: dict[int, int]) -> Iterator[int]:
    """Yield the numbers of the symbols that may have this name."""
    if DT_GNU_HASH in place:
        yield from _candidates_by_gnu_hash(read, place[DT_GNU_HASH])
    elif DT_HASH in place:
        yield from _candidates_by_old_hash(read, place[DT_HASH])


def _candidates_by_gnu_hash(read: Read, table: int) -> Iterator[int]:
    wanted = _gnu_hash(NAME)
    buckets, first, words, shift = struct.unpack("<4I", read(table, 16))
    if not buckets or not words:
        return
    (filtered,) = struct.unpack("<Q", read(table + 16 + 8 * (wanted // 64 % words), 8))
    bits = 1 << wanted % 64 | 1 << (wanted >> (shift & 31)) % 64
    if filtered & bits != bits:
        return
    at = table + 16 + 8 * words
    (number,) = struct.unpack("<I", read(at + 4 * (wanted % buckets), 4))
    if number < first:
        return
    chain = read(at + 4 * buckets + 4 * (number - first), 4 * MAX_CHAIN)
    for place, (found,) in enumerate(struct.iter_unpack("<I", chain[: len(chain) & ~3])):
        if found | 1 == wanted | 1:
            yield number + place
        if found & 1:
            return


def _candidates_by_old_hash(read: Read, table: int) -> Iterator[int]:
    buckets, symbols = struct.unpack("<2I", read(table, 8))
    if not buckets:
        return
    (number,) = struct.unpack("<I", read(table + 8 + 4 * (_old_hash(NAME) % buckets), 4))
    for _ in range(MAX_CHAIN):
        if not 0 < number < symbols:
            return
        yield number
        (number,) = struct.unpack("<I", read(table + 8 + 4 * (buckets + number), 4))


def _gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def _old_hash(name: bytes) -> int:
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


def _read_pointers(read: Read, variable: int) -> bytes:
    """Return the array of pointers without the zero at its end."""
    (array,) = struct.unpack("<Q", read(variable, 8))
    if not array:
        return b""
    wanted = 128 * 8
    while True:
        raw = read(array, wanted)
        whole = raw[: len(raw) & ~7]
        for place, (pointer,) in enumerate(struct.iter_unpack("<Q", whole)):
            if not pointer:
                return whole[: place * 8]
        if len(raw) < wanted or wanted >= MAX_VARIABLES * 8:
            return whole
        wanted = min(4 * wanted, MAX_VARIABLES * 8)


def _read_strings(read: Read, pointers: bytes) -> list[bytes]:
    """Return the strings in the order of their pointers. One that cannot be read is left out.

    Strings near each other are read at once.
    """
    wanted = [pointer for (pointer,) in struct.iter_unpack("<Q", pointers)]
    found: dict[int, bytes] = {}
    places = sorted(set(wanted))
    area, start, reads, size = b"", 0, 0, 0
    for place, pointer in enumerate(places):
        text = area[pointer - start :] if pointer < start + len(area) else b""
        following = places[place + 1] if place + 1 < len(places) else 2**64
        sizes = (MAX_VALUE_BYTES,) if following - pointer < MAX_VALUE_BYTES else SINGLE_SIZES
        for wanted_bytes in sizes:
            if b"\0" in text or reads >= MAX_STRING_READS:
                break
            reads += 1
            try:
                area, start = read(pointer, wanted_bytes), pointer
            except (OSError, OverflowError):
                area, start = b"", pointer
            text = area
        text, end, _ = text.partition(b"\0")
        size += len(text) + 1
        if end and size <= MAX_ENVIRON_BYTES:
            found[pointer] = text
    return [found[pointer] for pointer in wanted if pointer in found]
