"""The present environment of a process: of this one, and of memory that lies. Starts no process."""

from __future__ import annotations

import contextlib
import os
import platform
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.memory import read_memory
from agent.procfs import Proc, parse_environ
from agent.ranks.candidates import Candidate
from agent.ranks.guarded_reads import GuardedReads
from agent.ranks.live_environ import (
    MAX_ENVIRON_BYTES,
    NOT_READABLE,
    STATIC,
    Found,
    LiveEnviron,
    NoLiveEnviron,
    Read,
)
from agent.ranks.process_table import Process
from tests.waiting import wait_until

AUXV = Path("/proc/self/auxv").read_bytes()


def read_own(address: int, size: int) -> bytes:
    return read_memory(os.getpid(), address, size)


def read_all(auxv: bytes = AUXV, read: Read = read_own) -> bytes:
    found = LiveEnviron().read(auxv, read)
    return found.raw if found is not None else b""


class Late(LiveEnviron):
    """Its reads end when the test allows it, as while the target's mappings are locked."""

    allowed = threading.Event()

    def read_process(self, proc: Proc, pid: int, start_time: int) -> Found | None:
        found = super().read_process(proc, pid, start_time)
        self.allowed.wait(10)
        return found


def test_an_environment_that_was_read_too_late_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Late.allowed.clear()
    monkeypatch.setenv("RANK", "3")
    proc, reads, pid = Proc(), GuardedReads(lambda _: "uid:1"), os.getpid()
    stat = proc.stat(pid)
    assert stat is not None
    process = Process(pid=pid, ppid=1, start_time=stat.start_time, comm="python")
    candidate = Candidate(process=process, first_seen=0.0, live=Late())
    assert not candidate.read_live(proc, reads, {})
    Late.allowed.set()
    wait_until(lambda: not reads._stuck, "the late read has returned")
    reads._pauses.clear()
    assert candidate.read_live(proc, reads, {})
    assert candidate.claim is not None
    assert candidate.live.read_process(proc, pid, stat.start_time) is None, "it is known now"


def test_the_present_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveEnviron()
    monkeypatch.setenv("WATCHTOWER_LIVE_TEST", "1")
    first = live.read(AUXV, read_own)
    assert first is not None
    assert parse_environ(first.raw)["WATCHTOWER_LIVE_TEST"] == "1"
    live.keep(first)
    assert live.read(AUXV, read_own) is None  # unchanged
    monkeypatch.setenv("WATCHTOWER_LIVE_TEST", "2")
    changed = live.read(AUXV, read_own)
    assert changed is not None
    assert parse_environ(changed.raw)["WATCHTOWER_LIVE_TEST"] == "2"


def test_a_long_variable_and_those_behind_it_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHTOWER_LONG_TEST", "x" * 100_000)
    monkeypatch.setenv("WATCHTOWER_SHORT_TEST", "here")
    found = parse_environ(read_all())
    assert found["WATCHTOWER_SHORT_TEST"] == "here"
    assert "WATCHTOWER_LONG_TEST" not in found


def test_many_variables_that_lie_apart_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"WATCHTOWER_APART_{number}" for number in range(200)]
    apart = [bytes(8192) for name in names if monkeypatch.setenv(name, "x" * 40) is None]
    found = parse_environ(read_all())
    assert set(names) <= set(found)
    assert len(apart) == 200


def test_another_process_with_the_same_pid_is_not_read() -> None:
    assert LiveEnviron().read_process(Proc(), os.getpid(), start_time=-1) is None


def test_a_proc_of_another_pid_namespace_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "7"
    folder.mkdir(parents=True)
    fields = ["S", *["0"] * 18, "4711", *["0"] * 30]
    (folder / "stat").write_text(f"7 (python) {' '.join(fields)}")
    with pytest.raises(NoLiveEnviron, match="other process ids"):
        LiveEnviron().read_process(Proc(str(tmp_path)), 7, start_time=4711)


def test_without_rights_the_reason_is_given() -> None:
    def refuse(address: int, size: int) -> bytes:
        raise PermissionError

    for auxv in (b"", AUXV):
        with pytest.raises(NoLiveEnviron, match=NOT_READABLE):
            LiveEnviron().read(auxv, refuse)


def an_auxv(headers: int, count: int) -> bytes:
    return struct.pack("<6Q", 3, headers, 4, 56, 5, count) + bytes(16)


def test_a_static_program_is_named_as_the_reason() -> None:
    header = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0, 0, 0, 0)
    with pytest.raises(NoLiveEnviron, match=STATIC):
        LiveEnviron().read(an_auxv(0x400040, 1), lambda address, size: header)


class Lies:
    """Memory in which every word comes from a test. It counts what is read."""

    def __init__(self, words: list[int], ends: int) -> None:
        self.words, self.left, self.ends = words, 0, ends
        self.reads = self.bytes = 0

    def read(self, address: int, size: int) -> bytes:
        self.reads, self.bytes = self.reads + 1, self.bytes + size
        if not 0 <= address < 2**64 or self.reads > self.ends:
            raise OSError
        count = size // 8 + 1
        words = [self.words[(address + i) % len(self.words)] for i in range(count)]
        return struct.pack(f"<{count}Q", *words)[:size]


small = st.sampled_from([0, 1, 2, 4, 5, 6, 21, 0x6FFFFEF5, 0x1000, 0x2000, 2**63, 2**64 - 1])


@given(
    words=st.lists(st.one_of(small, st.integers(0, 2**64 - 1)), min_size=1, max_size=40),
    auxv=st.one_of(st.binary(max_size=400), st.just(an_auxv(0x1000, 8))),
    ends=st.integers(0, 5000),
)
def test_memory_that_lies_costs_little_and_raises_nothing_else(
    words: list[int], auxv: bytes, ends: int
) -> None:
    memory = Lies(words, ends)
    with contextlib.suppress(NoLiveEnviron):
        assert len(read_all(auxv, memory.read)) <= MAX_ENVIRON_BYTES
    assert memory.reads <= 64 * 140 + 600
    assert memory.bytes <= 64 * (8192 + 64 * 40) + 65536 + 512 * 4096


def test_real_memory_with_flipped_words_raises_nothing_else() -> None:
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("other layouts")
    for broken in range(40):
        count = iter(range(10_000))

        def read(
            address: int, size: int, broken: int = broken, count: Iterator[int] = count
        ) -> bytes:
            found = read_own(address, size)
            return os.urandom(len(found)) if next(count) == broken else found

        with contextlib.suppress(NoLiveEnviron):
            LiveEnviron().read(AUXV, read)
