"""Finds the callers of a place in native code, from the tables that compilers write for exceptions.

A stack also contains words of calls that are over: a search for addresses in it finds callers that
are none. The tables (.eh_frame, in the memory of the process, also of libraries without symbols)
give the size of each frame. Where they do not help, because code was made at run time, or a
register that is not known holds the frame, the next word behind a call instruction counts.

Sources: the DWARF 5 standard, section 6.4; the Linux Standard Base on .eh_frame and .eh_frame_hdr;
the ABI supplements for x86-64 and AArch64. Standard library only.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from agent.memory import Mapping, Maps

MAX_TABLE_STEPS = 32
"""Steps of a search in the table of a library: more than the logarithm of any table."""

MAX_ENTRY_BYTES = 4096
"""Bytes of one entry of a table. Usual ones have 20 to 300."""

STACK_POINTER = 31 if platform.machine() == "aarch64" else 7
RETURN_ADDRESS = 30 if platform.machine() == "aarch64" else 16
KEPT = frozenset(range(19, 30)) if STACK_POINTER == 31 else frozenset({3, 6, 12, 13, 14, 15})
"""Registers that a function preserves for its caller, by their DWARF numbers."""

Read = Callable[[int, int], bytes]
"""Reads memory of the process: address, number of bytes. Fewer bytes where it cannot be read."""


class Row(NamedTuple):
    """How to find the caller of a place: its frame's address, and what is saved relative to it."""

    register: int
    offset: int
    saved: dict[int, int]


PROGRAM_BYTES = 56
MAX_PROGRAMS = 128
"""Program headers of one library: usual ones have 7 to 15."""

PT_LOAD, PT_GNU_EH_FRAME = 1, 0x6474E550
UDATA4, DATAREL_SDATA4 = 0x03, 0x3B
POINTER_SIZES = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
PCREL = 0x10

MALFORMED = (struct.error, IndexError, ValueError, KeyError)
"""Errors of entries that are not as the standards say, or cannot be read."""


class Table(NamedTuple):
    """The search table of one library."""

    address: int
    entries: int

    def search(self, read: Read, pc: int) -> int:
        """Return the address of the entry whose function may contain `pc`; 0 without one.

        Raises struct.error where memory cannot be read.
        """
        low, high, found = 0, self.entries, 0
        for _ in range(MAX_TABLE_STEPS):
            if low >= high:
                break
            middle = (low + high) // 2
            start, entry = struct.unpack("<ii", read(self.address + 12 + 8 * middle, 8))
            if self.address + start <= pc:
                low, found = middle + 1, self.address + entry
            else:
                high = middle
        return found


def find_table(read: Read, base: int) -> Table | None:
    """Return the search table of the library whose ELF header is at `base`."""
    header = read(base, 64)
    if header[:5] != b"\x7fELF\x02":
        return None
    (programs_at,) = struct.unpack_from("<Q", header, 32)
    size, count = struct.unpack_from("<HH", header, 54)
    if size != PROGRAM_BYTES or count > MAX_PROGRAMS:
        return None
    programs = read(base + programs_at, size * count)
    found: dict[int, int] = {}
    for at in range(0, size * count, size):
        kind, _, _, address = struct.unpack_from("<IIQQ", programs, at)
        found.setdefault(kind, address)
    if PT_LOAD not in found or PT_GNU_EH_FRAME not in found:
        return None
    at = base + found[PT_GNU_EH_FRAME] - (found[PT_LOAD] & ~0xFFF)
    version, _, counted, encoded = read(at, 4)
    if (version, counted, encoded) != (1, UDATA4, DATAREL_SDATA4):
        return None
    return Table(at, int.from_bytes(read(at + 8, 4), "little"))


class Reader:
    """Reads the values of one entry."""

    def __init__(self, data: bytes, address: int) -> None:
        self._data, self._address = data, address
        self.at = 0

    def has_more(self) -> bool:
        """Return whether there are bytes left."""
        return self.at < len(self._data)

    def take(self, shape: str) -> int:
        """Read a number of a fixed size. Raises struct.error."""
        (value,) = struct.unpack_from(shape, self._data, self.at)
        self.at += struct.calcsize(shape)
        return int(value)

    def unsigned(self) -> int:
        """Read a ULEB128."""
        return self._leb()[0]

    def signed(self) -> int:
        """Read an SLEB128."""
        value, bits, last = self._leb()
        return value - (1 << bits) if last & 0x40 else value

    def _leb(self) -> tuple[int, int, int]:
        value = bits = 0
        while bits < 70:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << bits
            bits += 7
            if byte < 0x80:
                return value, bits, byte
        raise ValueError("a number is too long")

    def pointer(self, encoding: int) -> int:
        """Read an encoded pointer; indirect ones are not followed."""
        here = self._address + self.at
        value = self.take(POINTER_SIZES[encoding & 0x0F])
        return value + here if encoding & 0x70 == PCREL else value

    def text(self) -> str:
        """Read up to a zero byte."""
        end = self._data.index(0, self.at)
        found, self.at = self._data[self.at : end], end + 1
        return found.decode("ascii")

    def skip(self, size: int) -> None:
        """Go on behind some bytes."""
        self.at += size


class Entry:
    """The entry of one function in a table. Malformed ones raise MALFORMED."""

    def __init__(self, read: Read, address: int) -> None:
        body, start = _open_entry(read, address)
        back = start + body.at
        origin, _ = _open_entry(read, back - body.take("<I"))
        self._read_origin(origin)
        self.begin = body.pointer(self._encoding)
        self.size = body.take(POINTER_SIZES[self._encoding & 0x0F])
        if self._has_data:
            body.skip(body.unsigned())
        self._body = body

    def _read_origin(self, origin: Reader) -> None:
        origin.take("<I")
        version, augmentation = origin.take("<B"), origin.text()
        self._encoding, self._has_data = 0, augmentation.startswith("z")
        self.code_factor, self.data_factor = origin.unsigned(), origin.signed()
        _ = origin.take("<B") if version == 1 else origin.unsigned()
        if self._has_data:
            end = origin.unsigned() + origin.at
            for letter in augmentation[1:]:
                if letter == "R":
                    self._encoding = origin.take("<B")
                elif letter == "L":
                    origin.take("<B")
                elif letter == "P":
                    origin.pointer(origin.take("<B"))
            origin.at = end
        self._origin = origin

    def find_row(self, pc: int) -> Row | None:
        """Return the row of a place; None if the function does not contain it, or needs an
        expression.
        """
        if not self.begin <= pc < self.begin + self.size:
            return None
        rules = Rules(self)
        rules.follow(self._origin, pc)
        rules.initial = dict(rules.saved)
        rules.follow(self._body, pc)
        if rules.register is None:
            return None
        saved = {key: rules.saved[key] for key in (*KEPT, RETURN_ADDRESS) if key in rules.saved}
        return Row(rules.register, rules.offset, saved)


def _open_entry(read: Read, address: int) -> tuple[Reader, int]:
    length = int.from_bytes(read(address, 4), "little")
    if not 0 < length <= MAX_ENTRY_BYTES:
        raise ValueError("an entry is empty or too long")
    return Reader(read(address + 4, length), address + 4), address + 4


class Rules:
    """Executes the instructions of an entry up to a place."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._place = entry.begin
        self.register: int | None = None
        self.offset = 0
        self.saved: dict[int, int] = {}
        self.initial: dict[int, int] = {}
        self._stack: list[tuple[int | None, int, dict[int, int]]] = []

    def follow(self, reader: Reader, pc: int) -> None:
        """Execute instructions until they are about places behind `pc`."""
        while reader.has_more() and self._place <= pc:
            self._execute(reader.take("<B"), reader)

    def _execute(self, code: int, reader: Reader) -> None:
        kind, low = code >> 6, code & 0x3F
        if kind == 1:
            self._place += low * self._entry.code_factor
        elif kind == 2:
            self.saved[low] = reader.unsigned() * self._entry.data_factor
        elif kind == 3:
            self._restore(low)
        else:
            INSTRUCTIONS[code](self, reader)

    def advance(self, shape: str, reader: Reader) -> None:
        """Go on to a later place of the function."""
        self._place += reader.take(shape) * self._entry.code_factor

    def save(self, reader: Reader, *, signed: bool) -> None:
        """A register is saved at an offset from the frame."""
        register = reader.unsigned()
        offset = reader.signed() if signed else reader.unsigned()
        self.saved[register] = offset * self._entry.data_factor

    def forget(self, reader: Reader, *, has_expression: bool) -> None:
        """A register is not saved, or an expression would have to find it."""
        self.saved.pop(reader.unsigned(), None)
        if has_expression:
            reader.skip(reader.unsigned())

    def set_frame(self, reader: Reader, *, register: bool, offset: bool, signed: bool) -> None:
        """The frame is at an offset from a register."""
        if register:
            self.register = reader.unsigned()
        if offset:
            self.offset = reader.signed() if signed else reader.unsigned()
            self.offset *= self._entry.data_factor if signed else 1

    def lose_frame(self, reader: Reader) -> None:
        """An expression would have to find the frame."""
        reader.skip(reader.unsigned())
        self.register = None

    def remember(self, _: Reader) -> None:
        """Keep the rules."""
        self._stack.append((self.register, self.offset, dict(self.saved)))

    def recall(self, _: Reader) -> None:
        """Take the rules that were kept last."""
        self.register, self.offset, self.saved = self._stack.pop()

    def ignore(self, reader: Reader) -> None:
        """Skip a number."""
        reader.unsigned()

    def restore(self, reader: Reader) -> None:
        """A register has its first rule again."""
        self._restore(reader.unsigned())

    def _restore(self, register: int) -> None:
        self.saved.pop(register, None)
        if register in self.initial:
            self.saved[register] = self.initial[register]


INSTRUCTIONS: dict[int, Callable[[Rules, Reader], None]] = {
    0x00: lambda _, __: None,  # nop
    0x02: lambda rules, reader: rules.advance("<B", reader),
    0x03: lambda rules, reader: rules.advance("<H", reader),
    0x04: lambda rules, reader: rules.advance("<I", reader),
    0x05: partial(Rules.save, signed=False),  # offset_extended
    0x06: Rules.restore,  # restore_extended
    0x07: partial(Rules.forget, has_expression=False),  # undefined
    0x08: partial(Rules.forget, has_expression=False),  # same_value
    0x0A: Rules.remember,
    0x0B: Rules.recall,
    0x0C: partial(Rules.set_frame, register=True, offset=True, signed=False),  # def_cfa
    0x0D: partial(Rules.set_frame, register=True, offset=False, signed=False),
    0x0E: partial(Rules.set_frame, register=False, offset=True, signed=False),
    0x0F: Rules.lose_frame,  # def_cfa_expression
    0x10: partial(Rules.forget, has_expression=True),  # expression
    0x11: partial(Rules.save, signed=True),  # offset_extended_sf
    0x12: partial(Rules.set_frame, register=True, offset=True, signed=True),  # def_cfa_sf
    0x13: partial(Rules.set_frame, register=False, offset=True, signed=True),
    0x16: partial(Rules.forget, has_expression=True),  # val_expression
    0x2D: lambda _, __: None,  # negate_ra_state: the return address is signed
    0x2E: Rules.ignore,  # args_size
}
"""By the code of an instruction. Others raise KeyError: the table then does not help."""


MAX_FRAMES = 64
"""Callers that are followed: frames of the interpreter are below that of the wait."""

MAX_KNOWN_ROWS = 4096
"""Rows of tables that are remembered."""

MAX_SCANNED_BYTES = 2048
"""Bytes of stack in which a return address is searched where tables do not help."""

ADDRESS_MASK = (1 << 48) - 1
"""Without the bits that sign a return address on AArch64."""


class Unwinder:
    """Finds callers in one process."""

    def __init__(self, maps: Maps, read: Read) -> None:
        self._maps, self._read = maps, read
        self._rows: dict[int, Row | None] = {}
        self._tables: dict[int, Table | None] = {}

    def unwind(self, pc: int, registers: dict[int, int], stack: Read) -> Iterator[int]:
        """Yield the place and its callers, innermost first.

        `registers` are those known, by DWARF numbers, with the stack pointer.
        """
        known, at = dict(registers), pc
        for _ in range(MAX_FRAMES):
            yield pc
            row = self._find_row(at)
            if row is not None and row.register in known:
                found = self._follow(row, known, stack)
            else:
                found = self._scan(known, stack)
            if found is None:
                return
            pc, known = found
            at = pc - 1  # a return address may be behind the end of its function

    def _follow(
        self, row: Row, known: dict[int, int], stack: Read
    ) -> tuple[int, dict[int, int]] | None:
        """Return the caller and its registers; None at the end of the stack, or of its copy."""
        frame = known[row.register] + row.offset
        kept = {each: known[each] for each in KEPT if each in known}
        for register, offset in row.saved.items():
            word = stack(frame + offset, 8)
            if len(word) == 8:
                kept[register] = int.from_bytes(word, "little")
            elif register in kept:
                del kept[register]
        if RETURN_ADDRESS in row.saved:
            pc = kept.pop(RETURN_ADDRESS, 0) & ADDRESS_MASK
        else:
            pc = known.get(RETURN_ADDRESS, 0) & ADDRESS_MASK
        if frame < known[STACK_POINTER] or self._maps.find(pc) is None:
            return None
        kept[STACK_POINTER] = frame
        return pc, kept

    def _scan(self, known: dict[int, int], stack: Read) -> tuple[int, dict[int, int]] | None:
        """Find the next word on the stack that is behind a call instruction."""
        start = known[STACK_POINTER]
        words = stack(start, MAX_SCANNED_BYTES)
        for index, (word,) in enumerate(struct.iter_unpack("<Q", words[: len(words) & ~7])):
            if self._maps.find(word) is not None and self._is_behind_call(word):
                kept = {each: known[each] for each in KEPT if each in known}
                return word, {**kept, STACK_POINTER: start + 8 * (index + 1)}
        return None

    def _is_behind_call(self, address: int) -> bool:
        code = self._read(address - 8, 8)
        if len(code) < 8:
            return False
        if STACK_POINTER == 31:
            (word,) = struct.unpack("<I", code[4:])
            return bool(word >> 26 == 0x25 or word & 0xFFFFFC1F == 0xD63F0000)  # BL, BLR
        if code[3] == 0xE8:
            return True
        # FF /2 with its address in a register or in memory: two to seven bytes.
        return any(code[at] == 0xFF and code[at + 1] & 0x38 == 0x10 for at in (1, 2, 3, 4, 5, 6))

    def _find_row(self, pc: int) -> Row | None:
        if pc not in self._rows:
            if len(self._rows) >= MAX_KNOWN_ROWS:
                self._rows.clear()
            mapping = self._maps.find(pc)
            try:
                self._rows[pc] = self._read_row(mapping, pc) if mapping else None
            except MALFORMED:
                self._rows[pc] = None
        return self._rows[pc]

    def _read_row(self, mapping: Mapping, pc: int) -> Row | None:
        if not mapping.base:
            return None
        if mapping.base not in self._tables:
            self._tables[mapping.base] = find_table(self._read, mapping.base)
        table = self._tables[mapping.base]
        entry = table.search(self._read, pc) if table else 0
        return Entry(self._read, entry).find_row(pc) if entry else None
