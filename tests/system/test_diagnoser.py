"""The process that diagnoses, for real: it answers, it is ended when it costs too much, and it ends
with its tower."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.diagnosis.builders import a_case, ranks_in
from tests.waiting import wait_until
from watchtower.diagnoser.messages import DiagnosisLimits, Request, limits_for
from watchtower.diagnoser.process import DiagnoserDiedError, DiagnoserProcess
from watchtower.evidence.case import CaseParts


@pytest.fixture
def diagnoser():
    diagnoser = DiagnoserProcess()
    yield diagnoser
    diagnoser.kill()


def a_request(ranks: int = 4, **values) -> Request:
    parts = CaseParts(case=a_case(ranks_in(ranks, "")), dumps=())
    return Request(limits=limits_for(ranks), parts=parts, bodies=(), **values)


def state_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(") ")[2][0]
    except FileNotFoundError:
        return ""


def test_it_answers_one_request_after_the_other(diagnoser):
    for ranks in (4, 64, 4):
        answer = diagnoser.ask(a_request(ranks))
        assert answer.diagnosis is not None
        assert answer.evidence is not None
        assert answer.error == ""


def test_a_case_that_cannot_be_made_is_an_answer_with_the_traceback(diagnoser):
    answer = diagnoser.ask(replace(a_request(), bodies=(b"{",)))
    assert answer.diagnosis is None
    assert answer.evidence is None
    assert "DecodeError" in answer.error
    assert diagnoser.ask(a_request()).diagnosis is not None


def test_evidence_of_another_release_is_left_out(diagnoser):
    assert diagnoser.ask(a_request(earlier=b'{"ranks": 7}')).diagnosis is not None


def test_one_that_uses_up_its_cpu_time_is_ended_by_the_kernel(diagnoser):
    few_ms = DiagnosisLimits(cpu_s=0.05, memory_bytes=1 << 32)
    with pytest.raises(DiagnoserDiedError, match=r"it used more than 0\.05 s of CPU time"):
        diagnoser.ask(replace(a_request(20_000), limits=few_ms))
    assert state_of(diagnoser.pid) == ""


def test_one_that_needs_too_much_memory_does_not_take_it(diagnoser):
    little = DiagnosisLimits(cpu_s=20.0, memory_bytes=1 << 20)
    try:
        answer = diagnoser.ask(replace(a_request(20_000), limits=little))
    except DiagnoserDiedError:
        return
    assert "MemoryError" in answer.error


def test_one_that_is_stopped_is_given_up(diagnoser, monkeypatch):
    monkeypatch.setattr("watchtower.diagnoser.process.WALL_S", 0.5)
    monkeypatch.setattr("watchtower.diagnoser.process.WALL_PER_CPU", 0.0)
    os.kill(diagnoser.pid, signal.SIGSTOP)
    with pytest.raises(DiagnoserDiedError, match="did not answer in time"):
        diagnoser.ask(a_request())
    assert state_of(diagnoser.pid) == ""


def test_one_that_is_killed_says_so(diagnoser):
    diagnoser.ask(a_request())
    os.kill(diagnoser.pid, signal.SIGKILL)
    with pytest.raises(DiagnoserDiedError, match="killed, perhaps because memory ran out"):
        diagnoser.ask(a_request())


def test_the_kernel_short_of_memory_ends_it_first(diagnoser):
    diagnoser.ask(a_request())
    with open(f"/proc/{diagnoser.pid}/oom_score_adj") as file:
        assert file.read().strip() == "800"


STARTS_ONE = """
import time
from watchtower.diagnoser.process import DiagnoserProcess
print(DiagnoserProcess().pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_its_tower():
    tower = subprocess.Popen([sys.executable, "-c", STARTS_ONE], stdout=subprocess.PIPE, text=True)
    pid = int(tower.stdout.readline())
    assert state_of(pid) not in ("", "Z")
    tower.kill()
    tower.wait()
    tower.stdout.close()
    wait_until(lambda: state_of(pid) in ("", "Z"), "the process has ended")
