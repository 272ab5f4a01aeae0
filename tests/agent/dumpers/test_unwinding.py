"""Callers of native code: from tables by value, in this process, and from bytes of any kind."""

from __future__ import annotations

import os
import platform
import struct
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.dumpers import native_child
from agent.dumpers.unwinding import MAX_FRAMES, STACK_POINTER, Unwinder
from agent.memory import Maps

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="values are of x86-64")

BASE, CODE = 0x10000, 0x11000
MAPS = Maps(
    f"{BASE:x}-{CODE:x} r--p 00000000 08:01 1 /lib/a.so\n"
    f"{CODE:x}-{CODE + 0x1000:x} r-xp 00001000 08:01 1 /lib/a.so\n"
    "20000-21000 r-xp 00000000 08:01 2 /lib/b.so\n"
)
RBP = 6
HEADER_AT, FRAMES_AT = 0x400, 0x500
SAVED_RETURN = b"\x0c\x07\x08\x90\x01"  # frame: stack pointer + 8; return address: frame - 8


def library(*functions: tuple[int, int, bytes]) -> bytes:
    """A mapped library with one entry for each (start, size, instructions)."""
    image = bytearray(0x2000)
    image[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", image, 32, 64)
    struct.pack_into("<HH", image, 54, 56, 2)
    struct.pack_into("<IIQQ", image, 64, 1, 4, 0, 0)
    struct.pack_into("<IIQQ", image, 64 + 56, 0x6474E550, 4, HEADER_AT, HEADER_AT)
    struct.pack_into("<BBBBiI", image, HEADER_AT, 1, 0x1B, 0x03, 0x3B, 0, len(functions))
    origin = b"\0\0\0\0\x01zR\0\x01\x78\x10\x01\x1b" + SAVED_RETURN
    at = FRAMES_AT
    struct.pack_into(f"<I{len(origin)}s", image, at, len(origin), origin)
    at += 4 + len(origin)
    for index, (start, size, instructions) in enumerate(functions):
        here = at + 4
        body = struct.pack("<IiIB", here - FRAMES_AT, start - BASE - (here + 4), size, 0)
        body += instructions
        struct.pack_into(f"<I{len(body)}s", image, at, len(body), body)
        offsets = start - BASE - HEADER_AT, at - HEADER_AT
        struct.pack_into("<ii", image, HEADER_AT + 12 + 8 * index, *offsets)
        at += 4 + len(body)
    return bytes(image)


def unwind(image: bytes, pc: int, stack: list[int], **registers: int) -> list[int]:
    def read(address: int, size: int) -> bytes:
        at = address - BASE
        return image[at : at + size] if at >= 0 else b""

    def read_stack(address: int, size: int) -> bytes:
        at = address - 0x7000
        return struct.pack(f"<{len(stack)}Q", *stack)[at : at + size] if at >= 0 else b""

    known = {STACK_POINTER: 0x7000} | ({RBP: registers["rbp"]} if "rbp" in registers else {})
    return list(Unwinder(MAPS, read).unwind(pc, known, read_stack))


GROWS = b"\x44\x0e\x20"
"""From the fourth byte on, the frame is 32 bytes above the stack pointer."""


def test_the_table_says_how_large_a_frame_is_at_each_place():
    image = library((CODE, 0x40, GROWS), (CODE + 0x40, 0x40, b""))
    old = CODE + 0x60  # a word of a call that is over
    assert unwind(image, CODE, [CODE + 0x50]) == [CODE, CODE + 0x50]
    assert unwind(image, CODE + 8, [old, old, old, CODE + 0x50])[:2] == [CODE + 8, CODE + 0x50]


def test_a_return_address_behind_the_end_of_a_function_belongs_to_it():
    """A call that never returns may be the last instruction."""
    image = library((CODE, 0x40, b""), (CODE + 0x40, 0x40, b"\x0e\x18"), (CODE + 0x80, 0x40, b""))
    assert unwind(image, CODE, [CODE + 0x80, 0, 0, 0x20010])[:3] == [CODE, CODE + 0x80, 0x20010]


def test_a_frame_that_rbp_holds_is_found_when_rbp_is_known():
    holds = b"\x0c\x06\x10\x86\x02"  # frame: rbp + 16; rbp was saved at frame - 16
    image = library((CODE, 0x40, holds), (CODE + 0x40, 0x40, b""))
    stack = [CODE + 0x60, 1, 2, 0x7100, CODE + 0x50]
    assert unwind(image, CODE, stack, rbp=0x7018)[:2] == [CODE, CODE + 0x50]


def test_without_it_the_next_word_behind_a_call_counts():
    holds = b"\x0c\x06\x10\x86\x02"
    image = bytearray(library((CODE, 0x40, holds), (CODE + 0x40, 0x40, b"")))
    image[CODE - BASE + 0x50 - 5] = 0xE8
    stack = [CODE + 0x60, 1, 2, 0x7100, CODE + 0x50]
    assert unwind(bytes(image), CODE, stack)[:2] == [CODE, CODE + 0x50]


def test_states_are_remembered_and_restored():
    image = library((CODE, 0x40, b"\x41\x0a\x0e\x20\x42\x0b"), (CODE + 0x40, 0x40, b""))
    stack = [CODE + 0x50, 0, 0, CODE + 0x58]
    assert unwind(image, CODE + 2, stack)[1] == CODE + 0x58
    assert unwind(image, CODE + 4, stack)[1] == CODE + 0x50


SLEEP_S = 900.0


def test_a_thread_that_sleeps_in_python_is_in_the_c_library_under_the_interpreter():
    ready, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (ready.set(), go_on.wait(SLEEP_S)))
    thread.start()
    try:
        assert ready.wait(30)
        process = native_child.Process(os.getpid())
        found = native_child.Thread(os.getpid(), thread.native_id)
        until = time.monotonic() + 30
        while not found.chains and time.monotonic() < until:
            found.running = False
            native_child.read_blocked(process, found)
    finally:
        go_on.set()
        thread.join(30)
    chain = found.answer()["chain"]
    assert chain[0].startswith(("libc", "ld-"))
    assert "python" in chain[1]
    assert SLEEP_S - 60 < found.ends_in_s <= SLEEP_S


PARTS = st.sampled_from([0, 32, 54, 64, HEADER_AT, FRAMES_AT, FRAMES_AT + 0x20])


@given(st.binary(max_size=600), PARTS, st.integers(0, 0x80), st.binary(max_size=256))
def test_whatever_memory_contains_the_walk_ends(noise, part, at, stack):
    image = bytearray(library((CODE, 0x40, GROWS)))
    image[part + at : part + at + len(noise)] = noise

    def read(address: int, size: int) -> bytes:
        return bytes(image[max(address - BASE, 0) :][:size])

    def read_stack(address: int, size: int) -> bytes:
        return stack[address - 0x7000 :][:size] if address >= 0x7000 else b""

    places = Unwinder(MAPS, read).unwind(CODE + 8, {STACK_POINTER: 0x7000}, read_stack)
    assert 1 <= len(list(places)) <= MAX_FRAMES
