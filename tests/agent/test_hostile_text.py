"""Whatever a process, py-spy or a tower says: an error with a name, or values the wire allows."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from watchtower_heartbeat.layout import (
    COLD_WORDS,
    MAGIC,
    MAGIC_AT,
    PAGE_SIZE,
    SIZE_AT,
    STEP_AT,
    STEP_BEGUN_AT,
    TIME_NS_AT,
    VERSION,
    VERSION_AT,
)
from watchtower_heartbeat.page import PageError, decode

from agent.clocks import read_moment
from agent.collectors.endings import UNKNOWN_STATUS
from agent.collectors.process import parse_io
from agent.delivery.dump_queue import as_waiting
from agent.dumpers.collectives import read_collectives
from agent.dumpers.kernel_state import load_system_calls, parse_address, parse_syscall
from agent.dumps.contents import GroupSet, StackSet
from agent.dumps.triggers import REMEMBERED_ORDERS, DeadlineWatch, OrderInbox
from agent.dumps.turns import DUMPS_AT_ONCE, DumpSlots
from agent.procfs import MAX_VARIABLES, Proc, parse_command, parse_environ, parse_fields, parse_stat
from agent.ranks.found_rank import JobKey, RankBeat
from agent.ranks.launchers import is_launcher, is_python, is_wrapper, name_job
from agent.ranks.pages import PageFile
from agent.ranks.sources.environment import claim_rank
from agent.watching.rank import Heartbeat, make_ending
from tests.batches import EMPTY_BATCH
from tests.properties import examples
from watchtower.readers.canonical import BadDump, StackDump, parse_dump
from watchtower.wire.bounds import MAX_FRAMES, MAX_NAME, MAX_TEXT, MAX_THREADS
from watchtower.wire.collectives import RankCollectives
from watchtower.wire.dumps import DumpBatch, KernelWait, RankDump
from watchtower.wire.orders import Deadline, Order, ReportReply
from watchtower.wire.report import ProcessState, RankVitals, Report
from watchtower.writing.printable import printable

ANY_TEXT = st.text(st.characters(codec=None), max_size=40)
"""Surrogates and control characters too."""


def a_page(body: bytes, words: dict[int, int]) -> bytes:
    """A page with a true head, and after it whatever somebody wrote."""
    page = bytearray(body.ljust(PAGE_SIZE, b"\0")[:PAGE_SIZE])
    for place, value in words.items():
        page[place : place + 8] = value.to_bytes(8, "little", signed=True)
    page[MAGIC_AT : MAGIC_AT + len(MAGIC)] = MAGIC
    page[VERSION_AT : VERSION_AT + 8] = VERSION.to_bytes(8, "little")
    page[SIZE_AT : SIZE_AT + 8] = PAGE_SIZE.to_bytes(8, "little")
    return bytes(page)


@given(raw=st.binary(max_size=PAGE_SIZE + 10))
def test_random_bytes_are_no_page(raw: bytes) -> None:
    with pytest.raises(PageError):
        decode(raw)


PLACES = (STEP_AT, STEP_BEGUN_AT, TIME_NS_AT, *COLD_WORDS.values())
EXTREMES = (0, 1, -1, 2, 3, 255, 256, 2**31, 2**63 - 1, -(2**63))
PAGES = st.builds(
    lambda seed, words: a_page(Random(seed).randbytes(PAGE_SIZE) if seed else b"", words),
    st.integers(0, 2**32),
    st.dictionaries(st.sampled_from(PLACES), st.sampled_from(EXTREMES)),
)


@given(raw=PAGES)
def test_whatever_a_page_says_of_transfers_the_dump_can_be_sent(raw: bytes) -> None:
    stopped = KernelWait(state=ProcessState.STOPPED)
    found = read_collectives(Proc(), 1, decode(raw, allow_torn=True), stopped, 0.0)
    text = GroupSet().add(found)
    body = msgspec.json.encode(text)
    assert msgspec.json.decode(body, type=RankCollectives | None) == text


@given(raw=PAGES, cut=st.integers(0, PAGE_SIZE), then=PAGES)
@examples(200)
def test_whatever_a_page_says_the_report_can_be_sent(raw: bytes, cut: int, then: bytes) -> None:
    descriptor = os.memfd_create("page")
    os.write(descriptor, raw)
    heartbeat = Heartbeat(PageFile(descriptor, "3"), started_ns=0)
    for content in (then, raw[:cut], b""):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)
        view = heartbeat.read()
        assert view is not None
        vitals = RankVitals(
            job="j",
            rank=0,
            pid=1,
            start_time=1,
            beat=heartbeat.beat(time.monotonic_ns()),
            ended=make_ending(UNKNOWN_STATUS, view, age_s=0.0),
        )
        report = Report(version=1, node="n", agent_id="a", interval_s=1.0, ranks=(vitals,))
        assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)
FRAME = st.fixed_dictionaries(
    {}, optional={"name": ANY_TEXT, "filename": ANY_TEXT, "line": st.integers() | JSON}
)
THREAD = st.fixed_dictionaries(
    {"frames": st.lists(FRAME, max_size=5)},
    optional={
        "thread_name": ANY_TEXT | st.none(),
        "os_thread_id": st.integers() | st.none(),
        "owns_gil": st.booleans(),
        "active": st.booleans(),
    },
)


def check_dump(raw: bytes) -> None:
    """Parse, and if that works send it."""
    try:
        threads = parse_dump(raw, 7)
    except BadDump:
        return
    stacks = StackSet()
    dump = RankDump(
        rank=0,
        pid=7,
        start_time=1,
        kernel=KernelWait(),
        threads=stacks.add(StackDump(threads=threads), 7),
    )
    batch = replace(
        EMPTY_BATCH,
        ranks=(dump,),
        stacks=tuple(stack for stack, _ in stacks.owned()),
    )
    message = as_waiting(batch, read_moment()).message(2.5)
    again = msgspec.json.decode(message, type=DumpBatch)
    assert again.held_s == 2.5
    assert again.stacks == batch.stacks
    for stack in again.stacks:
        assert all(frame.function.isprintable() for frame in stack.frames)
        assert all(frame.file.isprintable() for frame in stack.frames)


@given(raw=st.binary(max_size=400))
def test_random_bytes_from_py_spy_are_an_error_or_a_dump(raw: bytes) -> None:
    check_dump(raw)


@given(value=JSON | st.lists(THREAD, max_size=5))
def test_any_json_from_py_spy_is_an_error_or_a_dump(value: Any) -> None:
    check_dump(json.dumps(value).encode())


@given(
    threads=st.lists(THREAD, min_size=1, max_size=3), at=st.integers(0), byte=st.integers(0, 255)
)
def test_a_dump_with_one_wrong_byte_is_an_error_or_a_dump(
    threads: list[Any], at: int, byte: int
) -> None:
    raw = bytearray(json.dumps(threads).encode())
    raw[at % len(raw)] = byte
    check_dump(bytes(raw))


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'[{"a":' * 100_000,
        b'[{"frames": [' + b'{"x": ' * 50_000,
        b"[" + b"[]," * 1_000_000 + b"[]]",
        b"[" + b"{}," * 1_000_000 + b"{}]",
    ],
)
def test_json_that_is_too_deep_or_too_long_is_an_error(raw: bytes) -> None:
    with pytest.raises(BadDump):
        parse_dump(raw, 7)


def test_a_stack_of_100_000_frames_is_cut_in_the_middle_in_time() -> None:
    frames = [{"name": f"f{n}", "filename": "/job/train.py", "line": n} for n in range(100_000)]
    raw = json.dumps([{"os_thread_id": 7, "frames": frames}]).encode()
    began = time.process_time()
    (stack,) = parse_dump(raw, 7).stacks
    assert time.process_time() - began < 5
    assert len(stack.frames) <= MAX_FRAMES
    assert (stack.frames[0].function, stack.frames[-1].function) == ("f0", "f99999")
    check_dump(raw)


def test_names_of_a_megabyte_are_cut() -> None:
    long = "<script>\x1b[2J\n\u202e" + "x" * 1_000_000
    frame = {"name": long, "filename": long, "line": 1}
    raw = json.dumps([{"os_thread_id": 7, "thread_name": long, "frames": [frame]}]).encode()
    dump = parse_dump(raw, 7)
    assert len(dump.threads[0].name) <= MAX_NAME
    assert len(dump.stacks[0].frames[0].function) <= MAX_TEXT
    assert dump.threads[0].name.isprintable()
    check_dump(raw)


def test_ten_thousand_threads_are_bounded_and_the_main_one_is_among_them() -> None:
    threads = [{"os_thread_id": 100 + n, "frames": []} for n in range(10_000)]
    raw = json.dumps([*threads, {"os_thread_id": 7, "frames": [{"name": "<module>"}]}]).encode()
    dump = parse_dump(raw, 7)
    assert len(dump.threads) == MAX_THREADS
    assert dump.threads[0].main


@given(raw=st.binary(max_size=300))
def test_text_of_proc_never_raises_anything_else(raw: bytes) -> None:
    parse_stat(raw)
    parse_fields(raw)
    environment, command = parse_environ(raw), parse_command(raw)
    claim_rank(environment)
    name = name_job(environment, host="h", program="p", started="05:31")
    assert name
    assert len(name) <= MAX_NAME
    assert name.isprintable()
    for check in (is_launcher, is_wrapper, is_python):
        check(command)
    parse_syscall(raw, load_system_calls("x86_64"))
    for parse in (parse_io, lambda raw: parse_address(raw.decode("ascii", "replace"))):
        with contextlib.suppress(ValueError):
            parse(raw)


@given(comm=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=15))
def test_a_command_name_may_resemble_the_rest_of_the_line(comm: str) -> None:
    rest = b") S 1 " + b"0 " * 5 + b"0 0 0 0 250 50 " + b"0 " * 6 + b"777 " + b"0 " * 29 + b"9"
    stat = parse_stat(b"42 (" + comm.encode() + rest)
    assert stat is not None
    assert (stat.comm, stat.state, stat.ppid, stat.start_time) == (comm, "S", 1, 777)


def test_an_environment_without_end_is_read_up_to_a_bound() -> None:
    raw = b"".join(b"V%d=1\0" % number for number in range(MAX_VARIABLES + 100))
    assert len(parse_environ(raw)) == MAX_VARIABLES
    assert parse_environ(b"RANK=3") == {"RANK": "3"}  # the last one may lack its NUL
    assert parse_environ(b"=\0=x\0\0RANK\0") == {}


@given(text=ANY_TEXT, limit=st.integers(0, 50))
def test_printable_text_can_be_encoded(text: str, limit: int) -> None:
    clean = printable(text, limit)
    assert len(clean) <= limit
    clean.encode("utf-8")


AGES = st.sampled_from([0.0, 1e-9, 1.0, 5.0, 1e9, 9.9e9])
DEADLINES = st.lists(
    st.builds(
        Deadline,
        job=st.sampled_from(["a", "b", "nobody"]),
        rank=st.integers(0, 3),
        after_s=AGES,
        phase=st.sampled_from(["", "eval"]),
    ),
    max_size=30,
)


@given(replies=st.lists(DEADLINES, max_size=4), now=st.floats(0, 1e6))
def test_whatever_deadlines_come_dumps_stay_rare(replies: list[list[Deadline]], now: float) -> None:
    """A rank that stays where it is asks for a dump at 0 s, 30 s, 90 s ..., whatever is ordered."""
    watch = DeadlineWatch()
    beats = [
        RankBeat(key=(rank, 1), job=JobKey(job), rank=rank, phase="", beat_at=now)
        for job in ("a", "b")
        for rank in range(2)
    ]
    fired = 0
    for step in range(200):
        if replies:
            watch.replace(replies[step % len(replies)])
        fired += len(watch.fire(beats, now + step, DumpSlots([])))
        due = watch.next_due(beats)
        assert due is None or due > now + step
    assert fired <= 2 * 2 * 4


ORDERS = st.lists(
    st.builds(
        Order,
        id=st.sampled_from("abcdef"),
        job=st.sampled_from(["a", "b", "nobody"]),
        expires_s=AGES,
    ),
    max_size=20,
)


@given(replies=st.lists(ORDERS, max_size=6))
def test_each_order_is_taken_at_most_once(
    replies: list[list[Order]],
) -> None:
    book = OrderInbox()
    taken: list[str] = []
    for now, orders in enumerate(replies):
        book.receive(orders, float(now))
        due, expired = book.take(float(now), DumpSlots([]))
        assert len(due) <= DUMPS_AT_ONCE
        taken += [order.id for order in [*due, *expired]]
    assert len(taken) == len(set(taken))


def test_orders_without_end_are_bounded() -> None:
    book = OrderInbox()
    for number in range(100):
        orders = [Order(id=f"{number}.{n}", job="nobody", expires_s=1e9) for n in range(64)]
        book.receive(orders, float(number))
        book.take(float(number), DumpSlots([]))
    assert len(book._seen) <= REMEMBERED_ORDERS
    assert len(book._waiting) <= REMEMBERED_ORDERS


@given(raw=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_reply_is_one_or_is_refused(raw: bytes) -> None:
    try:
        reply = msgspec.json.decode(raw, type=ReportReply)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    assert isinstance(reply.version, int)


@pytest.mark.parametrize("after_s", ["-1", "1e11", "NaN", "1e999", '"x"', "null"])
def test_a_deadline_that_is_no_age_is_refused(after_s: str) -> None:
    raw = '{"version": 1, "deadlines": [{"job": "j", "rank": 0, "after_s": %s}]}'
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode((raw % after_s).encode(), type=ReportReply)
