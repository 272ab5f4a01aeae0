"""The table of stillness: how long a job may be still, by its phase and the evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.jobs.scenes import World
from tests.jobs.story import Story, a_diagnosis, early, plain, stalled
from watchtower.jobs.condition import Condition, ConditionKind, Stall, Why
from watchtower.jobs.dump_timing import CHECK_GAP_S, CHECKS_FORGOTTEN_S, MAX_DOUBLINGS, EarlyChecks
from watchtower.jobs.effects import DiagnosisWanted, DumpsWanted, IncidentOpened
from watchtower.jobs.pace import Pauses
from watchtower.jobs.stall_context import StallContext, stall_context_of
from watchtower.jobs.stillness import TABLE, Still, patience_for
from watchtower.policy import Policy
from watchtower.wire.verdict import Cause, Status

ALONE = {"cause": Cause.BEHIND_COLLECTIVE, "is_shown_by_gpus": True, "suspects_moving": True}
ALONE |= {"suspect_class": "user", "suspects_rest": True}
"""All hosts wait for their GPUs, and one GPU works alone."""

IDLE = {"cause": Cause.GPU_FAULT, "is_shown_by_gpus": True, "suspect_class": "user"}
IDLE |= {"suspects_rest": True}
"""The same with one GPU that alone has no work."""

BUSY = {"suspects_rest": False}
"""The host of the suspect is at another place in each dump, or moves data: it may give its GPU more
work."""

EARLY: list[dict] = [{"starting": True}, {"phase": "load"}, {"no_heartbeat": True, "is_new": True}]
"""Situations in which no step time is known."""

PATIENCE = [
    # diagnosis, context, seconds, part of the reason
    ({}, {}, 10, "does not move"),
    ({}, {"typical_s": 4.0}, 20, "does not move"),
    ({"suspects_moving": True}, {}, 30, "moves but makes no step"),
    ({"suspects_moving": True, "suspect_class": "checkpoint"}, {}, 900, "checkpoint"),
    ({"suspects_moving": True, "suspect_class": "child"}, {}, 900, "child"),
    (
        {"suspects_moving": True, "suspects_transfer": True, "suspect_class": "user"},
        {},
        900,
        "network",
    ),
    (
        {"suspects_moving": True, "suspects_transfer": True, "suspect_class": "dataloader"},
        {},
        30,
        "moves but makes no step",
    ),
    ({"suspects_moving": True}, {"phase": "eval"}, 900, "works in phase eval"),
    *[
        ({"suspects_moving": True, "suspects_work": True}, each, 900, "the suspect works")
        for each in ({}, {"starting": True, "has_stepped": True}, {"no_heartbeat": True})
    ],
    ({"suspects_moving": True, "suspects_work": True}, {"starting": True}, 1800, "works"),
    ({"suspects_work": True}, {}, 10, "does not move"),
    ({}, {"phase": "eval"}, 60, "nothing moves in phase eval"),
    ({"peers_waiting": False}, {}, 900, "no rank is waiting for another"),
    ({"peers_waiting": False}, {"all_still": True}, 30, "nothing moves"),
    ({"cause": Cause.INIT_STUCK}, {"starting": True}, 10, "does not move"),
    ({"cause": Cause.INIT_STUCK, "suspects_moving": True}, {"starting": True}, 1800, "works"),
    ({"suspects": ()}, {"starting": True, "all_still": True}, 30, "nothing moves"),
    ({"suspects": (), "places": {"device": 4}}, {"starting": True}, 900, "all ranks wait"),
    (
        {"suspects": (), "places": {"device": 3, "elsewhere": 1}},
        {"starting": True},
        1800,
        "works on the first steps",
    ),
    ({"suspects": (), "places": {}}, {"starting": True}, 1800, "works on the first steps"),
    ({"cause": Cause.PROCESS_STOPPED, "peers_waiting": False}, {}, 10, "cannot go on"),
    ({}, {"no_heartbeat": True}, 10, "does not move"),
    *[({"suspect_wait": "pipe"}, each, 20, "does not move") for each in EARLY],
    *[({"suspect_wait": "nfs"}, each, 90, "storage may fail over") for each in EARLY],
    *[({"suspect_wait": "network"}, each, 300, "a service may be slow") for each in EARLY],
    *[({"suspect_wait": "sleep", "suspect_wait_s": 86400.0}, each, 20, "") for each in EARLY],
    *[({"suspect_wait_s": 45.0}, each, 55, "its wait ends in 45 s") for each in (*EARLY, {})],
    *[({"cause": Cause.UNINTERRUPTIBLE_IO}, each, 90, "storage") for each in EARLY],
    *[({"cause": Cause.CONDITIONAL_COLLECTIVE}, each, 10, "in different calls") for each in EARLY],
    ({"suspect_wait": "pipe"}, {}, 10, "does not move"),
    ({"suspect_wait": "network"}, {"no_heartbeat": True}, 10, "does not move"),
    ({"suspect_class": "init"}, {"starting": True}, 10, "does not move"),
    ({"cause": Cause.NEVER_STARTED}, {"starting": True}, 10, "cannot go on"),
    ({"suspects_moving": True}, {"starting": True, "has_stepped": True}, 900, "not known"),
    (
        {"suspects_moving": True, "suspect_class": "compile"},
        {"starting": True, "has_stepped": True},
        1800,
        "compile work takes long",
    ),
    ({"why_not": "too slow"}, {"all_still": True}, 30, "nothing moves"),
    ({"why_not": "too slow"}, {}, 900, "no diagnosis"),
    ({"suspects_moving": True}, {"no_heartbeat": True}, 900, "no step is known"),
    ({"suspects_moving": True}, {"no_heartbeat": True, "rare_s": 60}, 60, "rarely agree"),
    ({"suspects_moving": True}, {"no_heartbeat": True, "rare_s": 20}, 30, "rarely agree"),
    (
        {"suspects_moving": True, "suspect_class": "compile"},
        {"no_heartbeat": True, "rare_s": 60},
        900,
        "compile work takes long",
    ),
    (
        {"peers_waiting": False},
        {"no_heartbeat": True, "all_still": True},
        900,
        "no rank is waiting",
    ),
    ({"suspects": ()}, {"no_heartbeat": True, "all_still": True}, 900, "no rank is known"),
    (ALONE, {}, 10, "the GPU of the suspect differs"),
    (ALONE, {"typical_s": 4.0}, 20, "the GPU of the suspect differs"),
    (ALONE, {"no_heartbeat": True, "typical_s": 0.0}, 30, "no step is known"),
    (ALONE, {"no_heartbeat": True, "longest_run_s": 240.0}, 240, "no step is known"),
    (ALONE, {"typical_s": 0.0}, 30, "no step is known"),
    (ALONE | BUSY, {}, 30, "moves but makes no step"),
    (ALONE | BUSY | {"suspects_transfer": True}, {}, 900, "transfers data"),
    (ALONE | BUSY, {"no_heartbeat": True}, 900, "no step is known"),
    (IDLE | BUSY | {"suspects_moving": True}, {}, 30, "moves but makes no step"),
    (ALONE, {"starting": True}, 1800, "first steps"),
    (ALONE, {"phase": "eval"}, 900, "works in phase eval"),
    (ALONE | {"suspect_class": "checkpoint"}, {}, 900, "checkpoint work takes long"),
    (IDLE, {}, 10, "the GPU of the suspect differs"),
    (IDLE | {"suspect_class": "checkpoint"}, {}, 900, "checkpoint work takes long"),
]


@pytest.mark.parametrize(("diagnosis", "context", "seconds", "reason"), PATIENCE)
def test_patience_depends_on_the_evidence(diagnosis, context, seconds, reason):
    context = StallContext(**({"typical_s": 1.0} | context))
    patience = patience_for(a_diagnosis(**diagnosis), context, Pauses(), Policy())
    assert patience.hung_s == seconds
    assert reason in patience.reason


REASONS = [
    (
        {"waiting_text": "3 ranks seem to wait for it"},
        "the suspect does not move and 3 ranks seem to wait for it",
    ),
    (
        {"waiting_text": "3 ranks wait for them", "suspects": 2 * a_diagnosis().suspects},
        "the suspects do not move and 3 ranks wait for them",
    ),
    (
        {"waiting_text": "8 ranks wait for other ranks", "suspects": ()},
        "8 ranks wait for other ranks",
    ),
    (
        {"waiting_text": "3 ranks seem to wait for it", "peers_waiting": False},
        "3 ranks seem to wait for it, but they may be working there",
    ),
]


@pytest.mark.parametrize(("diagnosis", "reason"), REASONS)
def test_the_reason_of_a_patience_agrees_with_the_summary(diagnosis, reason):
    context = StallContext(typical_s=1.0)
    assert patience_for(a_diagnosis(**diagnosis), context, Pauses(), Policy()).reason == reason


def test_every_row_decides_some_case_and_has_a_name_of_its_own():
    names = [row.name for row in TABLE]
    assert len(set(names)) == len(names)
    decided = set()
    for diagnosis, fields, _, _ in PATIENCE:
        context = StallContext(**({"typical_s": 1.0} | fields))
        decided.add(patience_for(a_diagnosis(**diagnosis), context, Pauses(), Policy()).row)
    assert decided == set(names)


def test_the_last_row_fits_everything():
    assert TABLE[-1].fits(Still(a_diagnosis(), StallContext(), Policy()))


SUSPECT = [
    # diagnosis, context, seconds of stillness until the job is suspect
    ({"suspect_wait": "lock"}, 15),
    ({"suspect_wait": "fuse"}, 15),
    ({"suspect_wait": "poll"}, 30),
    ({"suspect_wait_s": 45.0}, 15),
    ({"cause": Cause.PROCESS_STOPPED}, 10),
    ({"cause": Cause.MISMATCHED_COLLECTIVE}, 15),
    ({"cause": Cause.MISMATCHED_COLLECTIVE, "confidence": 0.6}, float("inf")),
    ({"suspect_class": "init"}, float("inf")),
    ({"cause": Cause.NEVER_STARTED}, float("inf")),
    ({}, float("inf")),
    ({"suspects": ()}, float("inf")),
]


@pytest.mark.parametrize("context", [{"starting": True}, {"no_heartbeat": True, "is_new": True}])
@pytest.mark.parametrize(("diagnosis", "seconds"), SUSPECT)
def test_evidence_makes_a_job_suspect_whose_step_times_are_not_known(diagnosis, seconds, context):
    context = StallContext(**context)
    patience = patience_for(a_diagnosis(**diagnosis), context, Pauses(), Policy())
    assert patience.suspect_s == seconds


WORKS = {"suspects_moving": True, "suspects_work": True, "suspect_class": "user"}


def test_a_rank_that_works_is_named_by_an_incident_only():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis(**WORKS))
    story.see(stalled(), seconds=899, stalled_s=900.0)
    assert story.watch.status is Status.SUSPECT
    assert story.watch.shown is None
    story.see(stalled(), seconds=2, stalled_s=902.0)
    assert story.watch.status is Status.HUNG
    assert story.watch.shown is story.watch.diagnosis is not None


def test_a_rank_that_only_moves_is_named_after_a_while():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis(suspects_moving=True))
    story.see(stalled(), stalled_s=14.0)
    assert story.watch.shown is None
    story.see(stalled(), stalled_s=15.0)
    assert story.watch.shown is story.watch.diagnosis is not None


def test_time_counts_anew_when_a_suspect_has_worked_and_dumps_show_whether_it_still_does():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis(**WORKS))
    story.see(stalled(), seconds=400)
    story.effects.clear()
    story.hear(a_diagnosis(**(WORKS | {"suspects_work": False})))
    story.see(stalled(), seconds=28)
    assert any(isinstance(effect, DumpsWanted) for effect in story.effects)
    assert story.watch.status is Status.SUSPECT
    story.see(stalled(), seconds=3)
    assert story.watch.status is Status.HUNG


def test_patience_is_known_with_each_new_diagnosis():
    story = Story()
    story.see(stalled())
    for _ in range(2):
        story.hear(a_diagnosis())
        assert story.watch.hung_in_s(story.now) == 10
        assert story.watch.patience is not None
        assert story.watch.patience.reason


def test_an_early_check_shows_nothing_until_the_evidence_makes_the_job_suspect():
    story = Story()
    effects = story.see(early(), starting=True)
    assert {DumpsWanted(reason="suspect"), DiagnosisWanted()} <= set(effects)
    story.hear(a_diagnosis(suspect_wait="lock"))
    story.see(early(), seconds=3, starting=True, still_s=14.0)
    assert story.watch.status is Status.HEALTHY
    assert story.watch.is_checking
    story.see(early(), starting=True, still_s=15.0)
    assert story.watch.status is Status.SUSPECT
    assert story.watch.hung_in_s(story.now) == 20
    story.see(early(), seconds=19, starting=True, still_s=15.0)
    assert IncidentOpened not in story.kinds()
    story.see(early(), seconds=1, starting=True, still_s=15.0)
    assert story.watch.status is Status.HUNG


def test_a_suspect_that_is_known_by_evidence_stays_suspect_until_steps_come():
    story = Story()
    story.see(early(kind=ConditionKind.STEPPING), phase="load")
    story.hear(a_diagnosis(suspect_wait="lock"))
    story.see(early(kind=ConditionKind.STEPPING), phase="load", still_s=16.0)
    story.see(early(kind=ConditionKind.STEPPING), 30, phase="load", still_s=46.0)
    assert story.watch.status is Status.HUNG
    story.see(plain(ConditionKind.STEPPING))
    assert story.watch.status is Status.RECOVERED


def test_an_early_check_that_found_nothing_leaves_no_trace():
    story = Story()
    story.see(early())
    story.hear(a_diagnosis(suspects_moving=True))
    story.see(plain(ConditionKind.STEPPING))
    assert (story.watch.stall, story.watch.diagnosis) == (None, None)
    assert story.watch.status is Status.HEALTHY
    assert story.see(early()) == []
    assert DumpsWanted(reason="suspect") in story.see(early(), seconds=CHECK_GAP_S)


def test_a_late_suspicion_does_not_wait_for_checks_in_vain():
    story = Story()
    for _ in range(9):
        story.see(early(), seconds=200)
        story.see(plain(ConditionKind.STEPPING))
    assert story.see(early()) == []
    assert DumpsWanted(reason="suspect") in story.see(stalled())


def test_checks_in_vain_become_rare_and_are_forgotten():
    checks, now, gaps = EarlyChecks(), 0.0, []
    for _ in range(MAX_DOUBLINGS + 3):
        checks.end(now)
        began = now
        while not checks.may_begin(now):
            now += 1
        gaps.append(now - began)
    assert gaps[:3] == [CHECK_GAP_S, 2 * CHECK_GAP_S, 4 * CHECK_GAP_S]
    assert max(gaps) == CHECK_GAP_S * 2**MAX_DOUBLINGS
    now += CHECKS_FORGOTTEN_S + 1
    checks.end(now)
    assert checks.may_begin(now + CHECK_GAP_S)


def still_world(step: int) -> World:
    """A job that has made this step, whose ranks were seen for some seconds."""
    world = World()
    for rank in world.ranks.values():
        rank.step, rank.beat_at, rank.cpu_cores = step, world.now, 1.0
    world.report(3)
    return world


@pytest.mark.parametrize("step", [-1, 0, 2])
def test_first_steps_are_checked_when_a_rank_is_still(step):
    world = still_world(step)
    world.ranks[2].cpu_cores = 0.0
    condition = world.report(9)
    assert condition.stall is not None
    assert condition.stall.why is Why.STARTUP
    assert condition.kind is ConditionKind.STARTING


def test_first_steps_of_ranks_that_all_move_are_checked_later():
    world = still_world(2)
    assert world.report(9).stall is None
    assert world.report(5).stall is not None


def test_an_agent_that_starts_after_a_hang_is_not_late():
    world = World()
    for rank in world.ranks.values():
        rank.step, rank.beat_at = 500, world.now - 60
    world.report(2)
    condition = world.report(1)
    assert condition.stall is not None
    assert world.now - condition.stall.since > 60
    context = stall_context_of(
        world.attempt,
        world.fleet.nodes,
        world.detector,
        condition.stall,
        a_diagnosis(),
        world.now,
    )
    assert context.still_s > 60


def test_a_phase_is_checked_when_a_rank_in_it_is_still():
    world = World()
    world.step(10)
    for rank in world.ranks.values():
        rank.phase, rank.cpu_cores = "checkpoint", 1.0
    world.report(1)
    world.ranks[1].cpu_cores = 0.0
    assert world.report(9).stall is None
    condition = world.report(3)
    assert condition.kind is ConditionKind.STEPPING
    assert condition.stall is not None
    assert condition.stall.ranks == {1}


def test_a_step_of_known_length_is_checked_before_its_time_is_over():
    world = World()
    world.step(10)
    assert world.report(3).stall is None
    assert world.report(1).stall is not None
    assert world.report(1).kind is ConditionKind.STEPPING
    assert world.report(1).kind is ConditionKind.STALLED


def come_late(world: World, gap_s: float) -> Condition:
    """Rank after rank comes, each so many seconds after the one before."""
    ranks, world.ranks = world.ranks, {}
    for number, rank in ranks.items():
        world.ranks[number] = replace(rank, cpu_cores=1.0, started_at=world.now)
        condition = world.report(gap_s)
        assert condition.kind is not ConditionKind.STALLED
    return condition


def test_set_up_begins_with_the_last_rank():
    world = World()
    come_late(world, 100)
    assert world.now > 1000 + 3 * Policy().startup_grace_s


def test_a_rank_that_never_comes_is_late_after_the_last_one_that_came():
    world = World()
    world.launch(100, absent=frozenset({3}))
    come_late(world, 100)
    assert world.report(19).kind is not ConditionKind.STALLED
    condition = world.report(3)
    assert condition.kind is ConditionKind.STALLED
    assert condition.stall is not None
    assert 3 in condition.stall.ranks


@pytest.mark.parametrize(("ranks", "late_s"), [(4, 120.2), (1000, 170)])
def test_set_up_of_many_ranks_may_take_longer(ranks, late_s):
    world = World(size=ranks, per_node=500)
    assert world.report(int(late_s)).kind is not ConditionKind.STALLED
    assert world.report(2).kind is ConditionKind.STALLED


def test_a_phase_in_which_all_ranks_move_is_checked_later():
    world = World()
    world.step(10)
    for rank in world.ranks.values():
        rank.phase, rank.cpu_cores = "train", 1.0
    assert world.report(14).stall is None
    condition = world.report(3)
    assert condition.kind is ConditionKind.STEPPING
    assert condition.stall is not None
    assert condition.stall.ranks == {0, 1, 2, 3}


def test_a_check_that_finds_nothing_in_a_phase_is_made_again():
    story = Story()
    stall = Stall(why=Why.OVERDUE, since=100.0, ranks=frozenset({2}))
    phase = Condition(kind=ConditionKind.STEPPING, reason="in a phase", stall=stall)
    assert DumpsWanted(reason="suspect") in story.see(phase, phase="train")
    story.hear(a_diagnosis(**WORKS))
    story.see(phase, seconds=11, phase="train")
    assert not story.watch.is_checking
    assert DumpsWanted(reason="suspect") in story.see(phase, seconds=CHECK_GAP_S, phase="train")
    story.hear(a_diagnosis(Cause.MISMATCHED_COLLECTIVE))
    story.see(phase, seconds=11, phase="train", still_s=20.0)
    assert story.watch.status is Status.HUNG


@pytest.mark.parametrize(("moves", "still_s"), [(False, 7.0), (True, 0.0)])
def test_a_rank_that_uses_cpu_in_a_wait_is_still(moves, still_s):
    world = World()
    world.step(10)
    world.ranks[2].cpu_cores = 1.0
    condition = world.report(7)
    assert condition.stall is not None
    context = stall_context_of(
        world.attempt,
        world.fleet.nodes,
        world.detector,
        condition.stall,
        a_diagnosis(suspects_moving=moves),
        world.now,
    )
    assert context.still_s == still_s
