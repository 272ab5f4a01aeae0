"""The descriptions of native places: a wait for the device, and a thread that stays blocked."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import IN_LOCK, IN_USER_CODE, a_child, a_native, a_rank
from watchtower.evidence.native import describe_native, rests, waits_for_device

BLOCKED = a_native("python", run_ns=5_000_000, switches=80)


def dumps_of(first, second, **values):
    before, after = a_rank(0, IN_LOCK, **values).evidence.dumps
    return [replace(before, native=first), replace(after, native=second)]


@pytest.mark.parametrize("running", [True, False])
def test_only_the_last_dump_shows_a_wait_for_the_device(running):
    waiting = a_native("device_wait", library="libcuda.so.1", running=running)
    assert waits_for_device(dumps_of(None, waiting))
    assert not waits_for_device(dumps_of(waiting, BLOCKED))
    assert not waits_for_device([])


def test_where_the_last_dump_has_no_place_the_one_before_shows_it_at_the_same_line():
    waiting = a_native("device_wait", library="libcuda.so.1", running=True)
    assert waits_for_device(dumps_of(waiting, None, state="R"))
    assert not waits_for_device(dumps_of(waiting, None, state="R", before=IN_USER_CODE))
    assert not waits_for_device(dumps_of(waiting, None, state="R", gil="MainThread"))
    assert not waits_for_device(dumps_of(waiting, None, state="D"))
    assert not waits_for_device(dumps_of(replace(waiting, thread="trainer"), None, state="R"))
    assert not waits_for_device(dumps_of(BLOCKED, None, state="R"))
    assert not waits_for_device(dumps_of(waiting, None)[1:])


@pytest.mark.parametrize("run_ns", [0, 50_000_000])
def test_a_thread_that_hardly_ran_rests(run_ns):
    later = replace(BLOCKED, run_ns=BLOCKED.run_ns + run_ns, switches=200)
    assert rests(dumps_of(BLOCKED, later))


@pytest.mark.parametrize(
    "other",
    [
        replace(BLOCKED, run_ns=55_000_001),
        replace(BLOCKED, run_ns=4_999_999),
        replace(BLOCKED, run_ns=-1),
        replace(BLOCKED, thread="pt_autograd_0"),
        replace(BLOCKED, running=True),
        None,
    ],
)
def test_one_that_ran_between_the_dumps_does_not(other):
    assert not rests(dumps_of(BLOCKED, other))


def test_unknown_counters_show_nothing():
    unknown = replace(BLOCKED, run_ns=-1)
    assert not rests(dumps_of(unknown, unknown))


def test_one_dump_shows_nothing():
    assert not rests(dumps_of(BLOCKED, BLOCKED)[1:])


def test_it_may_wait_for_a_child_that_runs():
    assert not rests(dumps_of(BLOCKED, BLOCKED, children=(a_child(9, "R"),)))
    assert rests(dumps_of(BLOCKED, BLOCKED, children=(a_child(9, "S"),)))


def test_it_may_wait_for_another_python_thread_that_runs():
    taken = dumps_of(BLOCKED, BLOCKED, threads=(("writer", IN_LOCK),))
    assert rests(taken)
    running = tuple(replace(thread, active=not thread.main) for thread in taken[0].threads)
    assert not rests([replace(taken[0], threads=running), taken[1]])


@pytest.mark.parametrize(
    ("native", "text"),
    [
        (None, ""),
        (a_native("device_wait", library="libcuda.so.1", running=True), "polls for its device in"),
        (a_native("device_wait", library="libcuda.so.1"), "waits for its device in libcuda.so.1"),
        (a_native("compiler", library="libnvrtc.so.12", running=True), "compiles for its device"),
        (a_native("native", library="_tokens.so", running=True), "runs in _tokens.so"),
        (a_native("native", library="_queue.so"), "is blocked in _queue.so"),
        (a_native("native", library="a.so", thread="pt_autograd_0"), "pt_autograd_0 is blocked"),
        (a_native("generated", running=True), "runs generated code"),
        (a_native("python", library="python3.11", running=True), "runs Python"),
        (BLOCKED, ""),
        (a_native("libc", library="libc.so.6"), ""),
    ],
)
def test_a_place_is_told_where_it_adds_to_the_stack(native, text):
    assert describe_native(native).startswith(text)
    assert bool(describe_native(native)) is bool(text)
