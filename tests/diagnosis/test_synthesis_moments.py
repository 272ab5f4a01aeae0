"""Imagined jobs dumped at moments of their own: slow ones are nobody's fault, hung ones one's."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from tests.properties import examples
from tests.synthesis.evidence import Recording
from tests.synthesis.faults import FAULTS
from tests.synthesis.layout import Layout
from tests.synthesis.moments import Manners, draw_moments, goes_on, synthesize_case
from tests.synthesis.program import write_program
from tests.synthesis.records import overwrite, remake, save_beside, silence
from tests.synthesis.timeline import NEVER, Pace, pass_time
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.waits.collective_logs import read_collective_logs
from watchtower.evidence.case import Case

SOME = examples(
    40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
STEPS = 6
APPEARING = [fault for fault in FAULTS if fault.appearance is not None]

GLOO = (Manners(), Pace())
ISEND = (Manners(Recording(counts=frozenset({"recv"}))), Pace())
IRECV = (Manners(Recording(counts=frozenset({"send"}))), Pace())
ASYNC = (Manners(Recording(counts=frozenset()), runs_ahead=True), Pace(runs_ahead=True))
NCCL = (
    Manners(Recording(queued=True, counts=frozenset()), device=True, runs_ahead=True),
    Pace(runs_ahead=True, waits_at=()),
)
STACKS_ONLY = (Manners(Recording(kept=False)), Pace())
WAYS = (GLOO, ISEND, IRECV, ASYNC, NCCL, STACKS_ONLY)
COUNTED = (GLOO, ISEND, NCCL, STACKS_ONLY)
"""Ways in which no rank waits for a message under a line of the user's own."""


def draw_layout(rng: random.Random) -> Layout:
    expert = rng.choice([1, 1, 1, 2])
    shape = [rng.randint(1, 4) for _ in range(3)]
    layout = Layout(shape[0], shape[1] * expert, shape[2], expert)
    return layout if 3 <= layout.size <= 36 else draw_layout(rng)


def work_of(rng: random.Random):
    return lambda rank, at: rng.uniform(0.05, 1) * (3 if rank % 5 == 2 else 1)


def names_of(case: Case) -> list[int]:
    return [suspect.rank for suspect in diagnose(case).suspects]


def looks_alike(case: Case) -> bool:
    """Return whether some rank is in the same lines of the user's code in both of its dumps."""
    own = {
        stack.digest: tuple(frame for frame in stack.frames if not frame.library)
        for stack in case.stacks
    }
    return any(len({own[dump.threads[0].digest] for dump in item.dumps}) < 2 for item in case.ranks)


@pytest.mark.parametrize("way", WAYS, ids=["gloo", "isend", "irecv", "async", "NCCL", "stacks"])
@SOME
@given(seed=st.integers(0, 2**32))
def test_nobody_is_named_while_everybody_goes_on(way, seed: int):
    rng, (manners, pace) = random.Random(seed), way
    layout = draw_layout(rng)
    if way is ASYNC:
        # From `irecv().wait()` to work in the same function looks like one call that lingers.
        layout = replace(layout, tensor=3, pipeline=1)
    timeline = pass_time(layout, work_of(rng), steps=STEPS, pace=pace)
    spread, gap = rng.choice([0.0, 0.5, 2.0, 6.0]), rng.choice([3.0, 6.0, 10.0])
    moments = draw_moments(timeline, rng, spread, gap, timeline.last_s)
    recorded = manners.recording.kept
    assume(all(goes_on(timeline, moments, rank, recorded=recorded) for rank in moments))
    case = synthesize_case(timeline, moments, rng, manners)
    assume(recorded or not looks_alike(case))
    assert names_of(case) == []


def hang(rng: random.Random, way, *, cut: bool, staged: bool = True) -> tuple[Case, list[int]]:
    """Stop a rank, or the network, and dump everybody about then or some time after."""
    (manners, pace), layout = way, draw_layout(rng)
    layout = layout if staged else replace(layout, tensor=3, pipeline=1)
    rank, fault = rng.randrange(layout.size), rng.choice(APPEARING)
    calls = write_program(layout, rank)
    at = 2 * len(calls) + rng.randrange(len(calls))
    while (calls * STEPS)[at].operation == "send":
        at += 1
    stops, cut_at = ({}, at) if cut else ({rank: at}, None)
    work = work_of(rng)
    timeline = pass_time(layout, work, steps=STEPS, pace=pace, stops=stops, cut_at=cut_at)
    gap = rng.choice([1.0, 3.0, 10.0])
    begin = timeline.last_s + 1 - rng.choice([0, gap])
    first = {each: begin + rng.uniform(0, 2) for each in range(layout.size)}
    moments = {each: (moment, moment + gap) for each, moment in first.items()}
    appearances = {} if cut else {rank: fault.appearance}
    assert fault.appearance is not None
    return synthesize_case(timeline, moments, rng, manners, appearances), [] if cut else [rank]


def have_own_members(case: Case) -> bool:
    """Return whether no second making of one group may be taken for the first of another."""
    members = [group.members for group in case.groups]
    return len(set(members)) == len(members)


DISTURBANCES = {
    "nothing": lambda case, ranks: case,
    "a recorder that is off": lambda case, ranks: silence(case, ranks[:1]),
    "a recorder that fails": lambda case, ranks: silence(case, ranks[:1], "no answer"),
    "records overwritten": overwrite,
    "groups made again": lambda case, ranks: remake(case, ranks[:-1]),
    "a checkpoint thread": lambda case, ranks: save_beside(case, ranks[:1]),
}


@pytest.mark.parametrize("name", DISTURBANCES)
@SOME
@given(seed=st.integers(0, 2**32), way=st.sampled_from([*COUNTED, IRECV]))
def test_no_innocent_is_named_of_a_job_that_hangs(name: str, way, seed: int):
    rng = random.Random(seed)
    # Whose thread writes keeps the gather: of its main thread in a futex that says nothing, yet it
    # may be named.
    assume(name != "a checkpoint thread" or way in COUNTED)
    case, truth = hang(rng, way, cut=False)
    assume(name != "groups made again" or have_own_members(case))
    ranks = rng.sample(range(case.world_size), rng.randint(2, case.world_size))
    assert set(names_of(DISTURBANCES[name](case, ranks))) <= set(truth)


@pytest.mark.parametrize("name", DISTURBANCES)
@SOME
@given(seed=st.integers(0, 2**32), way=st.sampled_from(COUNTED))
def test_nor_of_one_whose_network_is_cut(name: str, way, seed: int):
    rng = random.Random(seed)
    case, _ = hang(rng, way, cut=True)
    assume(name != "groups made again" or have_own_members(case))
    ranks = rng.sample(range(case.world_size), rng.randint(2, case.world_size))
    assert names_of(DISTURBANCES[name](case, ranks)) == []


@SOME
@given(seed=st.integers(0, 2**32), way=st.sampled_from(WAYS), cut=st.booleans())
def test_who_has_called_all_that_others_wait_in_is_never_named(way, seed: int, cut: bool):
    case, _ = hang(random.Random(seed), way, cut=cut, staged=False)
    logs = read_collective_logs(case)
    assume(logs is not None)
    open_in: dict[str, int] = {}
    for digests in logs.of_rank.values():
        for log in (logs.by_digest[digest] for digest in digests):
            opened = log.find_open_call(0)
            if opened is not None:
                open_in[log.group] = max(open_in.get(log.group, 0), opened.number)
    come = {
        rank
        for rank in logs.of_rank
        if (own := list(logs.logs_of(rank)))
        and any(log.group in open_in for log in own)
        and all(log.called >= open_in.get(log.group, 0) for log in own)
    }
    assert not come & set(names_of(case))


def test_a_clock_that_goes_on_ends_every_call_in_the_order_of_calls():
    timeline = pass_time(Layout(2, 2, 2), work_of(random.Random(1)), pace=Pace(runs_ahead=True))
    for visits in timeline.visits:
        ends = [visit.over for visit in visits]
        assert ends == sorted(ends)
        assert all(visit.made <= visit.over < NEVER for visit in visits)


def test_a_thread_that_runs_ahead_has_several_calls_under_way():
    layout = Layout(data=2)
    timeline = pass_time(layout, lambda rank, at: 1.0, pace=Pace(runs_ahead=True))
    place = timeline.place_at(0, 0.35)
    assert (place.at, place.inside, place.under_way) == (2, True, 3)


def test_a_rank_that_is_stopped_keeps_the_calls_of_the_others_open():
    timeline = pass_time(Layout(data=3), lambda rank, at: 1.0, stops={1: 4})
    assert [len(visits) for visits in timeline.visits] == [5, 4, 5]
    assert [visits[-1].over == NEVER for visits in timeline.visits] == [True, False, True]
