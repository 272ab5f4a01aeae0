"""Observations are joined to ranks, and collectors share the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agent.collectors.collector import Collector
from agent.collectors.kernel_log import XIDS
from agent.metric_table import NODE_PROBLEM
from agent.ranks.process_table import Process
from agent.watching.observer import (
    ENDED_FOR_S,
    MAX_PROBLEMS,
    Observer,
    mark_oom_kills,
)
from watchtower.service.metric_spec import Sample
from watchtower.wire.observations import MAX_OBSERVATIONS, NODE, Observation
from watchtower.wire.report import Ending, EndingKind, RankVitals


def an_observation(name: str = "oom_kill", pid: int | None = None, age_s: float = 0.0):
    subject = f"pid:{pid}" if pid else "node"
    return Observation(source="kernel_log", subject=subject, name=name, pid=pid, age_s=age_s)


class Source:
    def __init__(self, name: str, found: Iterable[Observation] | Exception) -> None:
        self.name, self.found = name, found

    def collect(self, now: float) -> Iterator[Observation]:
        if isinstance(self.found, Exception):
            raise self.found
        return iter(self.found)

    metrics = (XIDS,)
    can_read = True

    def series(self) -> tuple[()]:
        return ()

    def samples(self, wall_now: float) -> list[Sample]:
        return [Sample(XIDS, ("0000:3b:00", "79"), 1.0)]

    def gap(self) -> str:
        return ""

    def stop(self) -> None:
        pass


@dataclass
class Found:
    process: Process


@dataclass
class Rank:
    found: Found


def a_rank(pid: int, *children: int, started_s: float = 10.0) -> Rank:
    process = Process(pid=pid, ppid=1, start_time=int(started_s * 100), comm="python")
    for child in children:
        start = int(started_s * 100)
        process.children[Process(pid=child, ppid=pid, start_time=start, comm="python")] = None
    return Rank(Found(process))


def observe_one(observation: Observation, rank: Rank, *, seen_at: float, now: float):
    observer = Observer([Source("kernel_log", [observation])])
    observer.note_processes([rank], seen_at)
    [found] = observer.observe(now, now)
    return found.pid


def test_a_child_belongs_to_its_rank():
    assert observe_one(an_observation(pid=43), a_rank(42, 43), seen_at=100, now=101) == 42


def test_another_process_keeps_its_pid():
    assert observe_one(an_observation(pid=99), a_rank(42, 43), seen_at=100, now=101) == 99


def test_an_event_before_the_start_of_the_process_is_about_another():
    event = an_observation(pid=42, age_s=95)
    assert observe_one(event, a_rank(42), seen_at=100, now=101) is None


def test_an_event_long_after_its_end_is_about_another():
    late = 100 + ENDED_FOR_S + 1
    assert observe_one(an_observation(pid=42), a_rank(42), seen_at=100, now=late) is None


def test_an_agent_in_a_pid_namespace_of_its_own_knows_no_process_of_an_event():
    observer = Observer([Source("kernel_log", [an_observation(pid=43)])], is_contained=True)
    observer.note_processes([a_rank(42, 43)], 100)
    assert [each.pid for each in observer.observe(101, 101)] == [None]


def test_a_collector_that_fails_stops_no_other():
    observer = Observer([Source("gpu", OSError("gone")), Source("kernel_log", [an_observation()])])
    assert len(observer.observe(1.0, 1.0)) == 1
    assert observer.gap() == "gpu: OSError: gone"


def test_a_collector_with_too_many_leaves_room_for_another():
    many = [an_observation(f"a.{number}") for number in range(2 * MAX_OBSERVATIONS)]
    sources: list[Collector] = [Source("a", many), Source("b", [an_observation("last")])]
    found = Observer(sources).observe(1.0, 1.0)
    assert len(found) == MAX_OBSERVATIONS
    assert "last" in [each.name for each in found]


def killed(pid: int, code: int = 9) -> RankVitals:
    ending = Ending(kind=EndingKind.SIGNAL, code=code, age_s=1.0)
    return RankVitals(job="llama", rank=0, pid=pid, start_time=1, ended=ending)


def test_the_oom_killer_ended_the_process_that_it_names():
    kills = [an_observation(pid=42)]
    ranks = mark_oom_kills([killed(42), killed(43), killed(42, code=15)], kills)
    assert [each.ended.oom_killed for each in ranks] == [True, False, False]


def test_the_kill_of_a_child_is_not_the_kill_of_the_rank():
    child = Observation(source="kernel_log", subject="pid:43", name="oom_kill", pid=42, age_s=0)
    [rank] = mark_oom_kills([killed(42)], [child])
    assert not rank.ended.oom_killed


def test_problems_of_a_node_have_a_metric_while_they_are_observed():
    found = [
        Observation(source="nvml", subject="pci:0000:3b:00", name=name, age_s=0.0)
        for name in (
            "gpu_recovery",
            "gpu_reset_required",
            "gpu_pattern.working",
            "gpu_remap.failed",
        )
    ]
    found.append(Observation(source="shared_memory", subject=NODE, name="shm_full", age_s=0.0))
    source = Source("nvml", found)
    observer = Observer([source])

    def problems() -> dict[tuple[str, ...], float]:
        found = (each for each in observer.samples() if each.spec is NODE_PROBLEM)
        return {each.labels: each.value for each in found}

    observer.observe(100.0, 100.0)
    gpu = "0000:3b:00"
    seen = [(gpu, "recovery_recommended"), (gpu, "row_remapping"), ("", "shm_full")]
    assert problems() == dict.fromkeys(seen, 1.0)
    source.found = found[2:3]
    observer.observe(106.0, 106.0)
    assert problems() == dict.fromkeys(seen, 0.0)


def test_a_problem_has_not_ended_because_its_source_cannot_be_read():
    lost = Observation(source="nvml", subject="pci:0000:3b:00", name="gpu_lost", age_s=0.0)
    full = Observation(source="shared_memory", subject=NODE, name="shm_full", age_s=0.0)
    gpus, memory = Source("nvml", [lost]), Source("shared_memory", [full])
    observer = Observer([gpus, memory])
    times = iter(range(100, 1000, 6))

    def problems() -> list[float]:
        observer.observe(now := float(next(times)), now)
        return [each.value for each in observer.samples() if each.spec is NODE_PROBLEM]

    assert problems() == [1.0, 1.0]
    gpus.found, memory.found = OSError("the reader is restarted"), []
    assert problems() == [1.0, 0.0]
    gpus.found, gpus.can_read = [], False
    assert problems() == [1.0, 0.0]
    gpus.can_read = True
    assert problems() == [0.0, 0.0]


def test_a_problem_that_two_sources_report_lasts_until_neither_does():
    lost = Observation(source="nvml", subject="pci:0000:3b:00", name="gpu_lost", age_s=0.0)
    first, second = Source("nvml", [lost]), Source("kernel_log", [lost])
    observer = Observer([first, second])
    found = []
    for now in (100.0, 106.0, 112.0):
        observer.observe(now, now)
        found.append([each.value for each in observer.samples() if each.spec is NODE_PROBLEM])
        (first if now < 106 else second).found = []
    assert found == [[1.0], [1.0], [0.0]]


def test_the_problems_of_a_node_are_bounded():
    found = [
        Observation(source="nvml", subject=f"pci:{n}", name="gpu_lost", age_s=0.0)
        for n in range(2 * MAX_PROBLEMS)
    ]
    observer = Observer([Source("nvml", found[:200]), Source("more", found[200:])])
    observer.observe(100.0, 100.0)
    problems = [each for each in observer.samples() if each.spec is NODE_PROBLEM]
    assert len(problems) == MAX_PROBLEMS
