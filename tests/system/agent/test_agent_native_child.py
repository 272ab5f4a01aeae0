"""Sampling a thread that gets little CPU, or that has stopped to run."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agent.dumpers import native_child
from agent.dumpers.native_child import LEAST_SAMPLES, Process, Thread, sample
from agent.dumpers.native_places import ThreadSamples, classify
from agent.dumpers.perf_clock import find_sampling_error
from tests.agent.agent_scene import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.ptrace,
    pytest.mark.timeout(2 * PATIENCE_S),
    pytest.mark.skipif(bool(find_sampling_error()), reason=f"perf: {find_sampling_error()}"),
]

RARELY_RUNS = """
import time
print(flush=True)
while True:
    end = time.thread_time() + 0.001
    while time.thread_time() < end: pass
    time.sleep(0.3)
"""


@contextlib.contextmanager
def running(program: str) -> Iterator[Process]:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as popen:
        assert popen.stdout is not None
        popen.stdout.readline()
        process = Process(popen.pid)
        try:
            yield process
        finally:
            process.close()
            popen.kill()


def sampled(process: Process) -> ThreadSamples:
    """Sample the main thread, which was found to run before."""
    thread = Thread(process.pid, process.pid)
    thread.running = True
    sample([(process, thread)])
    return ThreadSamples(**thread.answer())


def test_a_thread_with_little_cpu_is_sampled_for_longer():
    with running(RARELY_RUNS) as process:
        found = sampled(process)
    assert found.running
    assert sum(found.leaves.values()) >= LEAST_SAMPLES


def test_with_too_few_samples_its_place_is_where_it_sleeps(monkeypatch):
    monkeypatch.setattr(native_child, "LONGEST_SAMPLING_S", 0.01)
    with running(RARELY_RUNS) as process:
        wait_until(lambda: is_asleep(process.pid), "the program sleeps")
        assert not sampled(process).running


def test_a_thread_that_has_just_been_blocked_is_read_as_blocked(monkeypatch):
    monkeypatch.setattr(native_child, "LONGEST_SAMPLING_S", 0.3)
    with running("import time; print(flush=True); time.sleep(600)") as process:
        wait_until(lambda: is_asleep(process.pid), "the program sleeps")
        found = sampled(process)
        assert not found.running
        assert (place := classify(found)) is not None
        assert place.ends_in_s == pytest.approx(600, abs=PATIENCE_S)


def is_asleep(pid: int) -> bool:
    with open(f"/proc/{pid}/syscall") as file:
        return file.read().split()[0] not in ("running", "0")
