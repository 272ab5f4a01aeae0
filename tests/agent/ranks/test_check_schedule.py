"""When candidates are checked, and how a budget of descriptors is shared. By value."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from agent.ranks.candidates import Candidate
from agent.ranks.check_schedule import DESCRIPTOR_BURST, DESCRIPTORS_PER_S, CheckSchedule
from agent.ranks.process_table import Process


def a_candidate(pid: int = 10) -> Candidate:
    process = Process(pid=pid, ppid=1, start_time=1, comm="python")
    return Candidate(process=process, first_seen=0.0)


class Scene:
    def __init__(self, cost: Callable[[Candidate], int] = lambda _: 1) -> None:
        self.schedule, self.cost = CheckSchedule(), cost
        self.ranks: set[int] = set()
        self.likely: set[int] = set()
        self.checks: list[tuple[float, int]] = []

    def run(self, until: float, start: float = 0.0) -> None:
        now = start
        while now <= until:
            self.schedule.run(
                now, check=self._checker(now), is_rank=self._is_rank, is_likely=self._is_likely
            )
            now += 1.0

    def _checker(self, now: float):  # type: ignore[no-untyped-def]
        def check(candidate: Candidate) -> int:
            self.checks.append((now, candidate.process.pid))
            return self.cost(candidate)

        return check

    def _is_rank(self, candidate: Candidate) -> bool:
        return candidate.process.pid in self.ranks

    def _is_likely(self, candidate: Candidate) -> bool:
        return candidate.process.pid in self.likely

    def times(self, pid: int = 10) -> list[float]:
        return [at for at, who in self.checks if who == pid]


def test_checks_become_rarer_and_never_stop() -> None:
    scene = Scene()
    scene.schedule.add(a_candidate(), 0.0, helper=False)
    scene.run(300.0)
    assert scene.times() == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]


def test_a_rank_without_a_page_is_checked_within_a_quarter_of_its_age() -> None:
    scene = Scene()
    scene.ranks = {10}
    scene.schedule.add(a_candidate(), 0.0, helper=False)
    scene.run(200.0)
    times = scene.times()
    assert all(b - a <= max(1.0, 0.25 * a) + 1 for a, b in pairwise(times))


def test_a_program_that_may_become_a_rank_is_checked_within_an_eighth_of_its_age() -> None:
    scene = Scene()
    scene.likely = {10}
    scene.schedule.add(a_candidate(), 0.0, helper=False)
    scene.run(900.0)
    assert all(b - a <= max(1.0, a / 8) + 1 for a, b in pairwise(scene.times()))
    assert max(b - a for a, b in pairwise(scene.times())) == 60


def test_a_program_that_is_old_when_the_agent_starts_is_checked_rarely() -> None:
    scene, candidate = Scene(), a_candidate()
    scene.likely, candidate.age_s = {10}, 400.0
    scene.schedule.add(candidate, 0.0, helper=False)
    scene.run(120.0)
    assert scene.times() == [0, 50, 107]


def test_a_candidate_that_is_hastened_is_checked_once_more_and_then_as_before() -> None:
    scene, candidate = Scene(), a_candidate()
    scene.schedule.add(candidate, 0.0, helper=False)
    scene.run(35.0)
    scene.schedule.hasten(candidate, 36.0)
    scene.schedule.hasten(candidate, 36.0)
    scene.run(100.0, start=36.0)
    assert scene.times() == [0, 1, 3, 7, 15, 31, 36, 96]


def test_what_a_rank_forked_waits() -> None:
    scene = Scene()
    scene.schedule.add(a_candidate(), 0.0, helper=True)
    scene.run(10.0)
    assert scene.times()[0] == 8


def test_no_more_descriptors_are_read_than_there_are() -> None:
    scene = Scene(lambda _: 1000)
    for pid in range(100):
        scene.schedule.add(a_candidate(pid), 0.0, helper=False)
    scene.run(100.0)
    spent = 1000 * len(scene.checks)
    assert spent <= DESCRIPTOR_BURST + 100 * DESCRIPTORS_PER_S + 1000


def test_ranks_are_checked_first_when_the_budget_is_small() -> None:
    scene = Scene(lambda _: DESCRIPTOR_BURST)
    for pid in range(20):
        scene.schedule.add(a_candidate(pid), 0.0, helper=False)
    scene.ranks = {19}
    scene.run(0.0)
    assert scene.checks == [(0.0, 19)]


def test_a_candidate_that_is_gone_is_dropped() -> None:
    scene = Scene(lambda _: -1)
    scene.schedule.add(a_candidate(), 0.0, helper=False)
    scene.run(100.0)
    assert scene.times() == [0]


def test_a_rank_whose_page_is_dear_to_find_costs_the_others_nothing() -> None:
    cheap = range(1000, 1008)

    def cost(candidate: Candidate) -> int:
        return 10 if candidate.process.pid in cheap else min(4096, 64 * 4**candidate.checks)

    scene = Scene(cost)
    scene.ranks = {*range(200), *cheap}
    for pid in scene.ranks:
        scene.schedule.add(a_candidate(pid), 0.0, helper=False)
    scene.run(60.0)
    assert all(scene.times(pid)[0] < 60 for pid in cheap)
