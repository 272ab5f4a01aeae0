"""Finds the callers of a place in native code, from the tables that compilers write for exceptions.

A stack also contains words of calls that are over: a search for addresses in it finds callers that
are none. The tables (.eh_frame, in the memory of the process) give the size of each frame.

Where they do not help, because code was made at run time, or a register that is not known holds the
frame, the next word behind a call instruction counts.

Standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from agent.dumpers.frame_tables import (
    KEPT,
    MALFORMED,
    RETURN_ADDRESS,
    STACK_POINTER,
    Entry,
    Read,
    Row,
    Table,
    find_table,
)
from agent.dumpers.mappings import Mapping, Maps

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
