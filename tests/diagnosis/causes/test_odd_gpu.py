"""Ranks named by the load of their GPUs: all hosts wait, and one GPU does what no other does."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_HIDDEN_WAIT,
    POLLS,
    a_case,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import answer_of_case
from tests.views.summary.cases import GOLDENS, read_golden
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Case
from watchtower.wire.observations import Observation
from watchtower.wire.report import Movement

HOSTS = ranks_in(8, IN_HIDDEN_WAIT, native=POLLS, cpu=1.0, state="R", syscall="", active=True)
DOWNLOADS = Movement(cpu_cores=1.0, socket_bytes_per_s=5e7)
SPINNING = dict.fromkeys(range(8), "spinning")


def observed(patterns, *others, age_s=1.0, built=HOSTS) -> Case:
    """Return a stalled job of 8 ranks; `patterns` are those of their GPUs, by rank."""
    case = a_case(with_rank(built, *others))
    by_node: dict[str, list[Observation]] = {}
    for rank, pattern in patterns.items():
        evidence = case.ranks[rank]
        made = Observation(
            source="nvml",
            subject=f"pci:0000:{rank:02x}:00",
            name=f"gpu_pattern.{pattern}",
            age_s=age_s,
            value=rank % 4,
            text="97% busy, memory 21%, 388 W of 500 W",
            pid=evidence.pid,
        )
        by_node.setdefault(evidence.node, []).append(made)
    nodes = tuple(
        replace(node, observations=tuple(by_node.get(node.node, ()))) for node in case.nodes
    )
    return replace(case, nodes=nodes)


@pytest.mark.parametrize(
    ("pattern", "cause"),
    [
        ("working", "behind_collective"),
        ("throttled", "behind_collective"),
        ("idle", "gpu_fault"),
        ("lost", "gpu_fault"),
    ],
)
def test_the_gpu_that_differs_is_named(pattern, cause):
    diagnosis = diagnose(observed(SPINNING | {5: pattern}))
    assert (diagnosis.cause.value, [each.rank for each in diagnosis.suspects]) == (cause, [5])
    assert diagnosis.suspects[0].gpu == 1
    assert diagnosis.confidence >= 0.75
    # A GPU that works may end its work: the stall gets more patience.
    assert diagnosis.suspects_moving is (cause == "behind_collective")


def test_a_gpu_whose_counters_stand_still_is_named_with_doubt():
    diagnosis = diagnose(observed(SPINNING | {5: "frozen"}))
    assert (diagnosis.cause.value, [each.rank for each in diagnosis.suspects]) == ("gpu_fault", [5])
    assert diagnosis.confidence == 0.6
    assert "no longer changes any of its counters" in diagnosis.summary
    assert "counters that stand still may be a fault of the counters alone" in str(diagnosis.doubts)
    assert "check GPU 0000:05:00" in diagnosis.next_steps[0]
    assert answer_of_case(observed(SPINNING | {5: "frozen", 6: "frozen"}))[1] == []


HOST = {"native": POLLS, "cpu": 1.0, "state": "R", "syscall": "", "active": True}
NEXT_WAIT = IN_HIDDEN_WAIT.replace(":51", ":53")


@pytest.mark.parametrize("pattern", ["working", "idle"])
@pytest.mark.parametrize(
    ("host", "rests"),
    [
        (a_rank(5, IN_HIDDEN_WAIT, **HOST), True),
        (a_rank(5, NEXT_WAIT, before=IN_HIDDEN_WAIT, **HOST), False),
        (a_rank(5, IN_HIDDEN_WAIT, **(HOST | {"written": 1e7})), False),
        (a_rank(5, IN_HIDDEN_WAIT, **(HOST | {"movement": DOWNLOADS})), False),
    ],
    ids=["rests", "next line", "writes", "downloads"],
)
def test_a_host_that_does_more_than_wait_may_give_its_gpu_more_work(pattern, host, rests):
    diagnosis = diagnose(observed(SPINNING | {5: pattern}, host))
    assert [each.rank for each in diagnosis.suspects] == [5]
    assert diagnosis.is_shown_by_gpus
    assert diagnosis.suspects_rest is rests
    assert diagnosis.suspects_moving is (pattern == "working" or not rests)


def test_gpus_that_all_wait_accuse_nobody():
    assert answer_of_case(observed(SPINNING))[1] == []


@pytest.mark.parametrize(
    "patterns",
    [
        {},
        {5: "working"},
        {5: "working", 4: "spinning"},
        SPINNING | {5: "working", 6: "working"},
        SPINNING | {5: "unknown"},
        SPINNING | {5: "no such pattern"},
    ],
)
def test_what_is_not_plain_accuses_nobody(patterns):
    assert answer_of_case(observed(patterns))[1] == []


def test_an_old_pattern_does_not_count():
    assert answer_of_case(observed(SPINNING | {5: "working"}, age_s=60.0))[1] == []


def test_gpus_that_are_not_known_lower_the_confidence():
    some = {rank: "spinning" for rank in range(4)} | {5: "working"}
    diagnosis = diagnose(observed(some))
    assert [each.rank for each in diagnosis.suspects] == [5]
    assert diagnosis.confidence <= 0.6
    assert "gpus_unknown" in [doubt.kind for doubt in diagnosis.doubts]


def test_a_rank_that_is_elsewhere_is_the_reason_whatever_the_gpus_do():
    late = a_rank(3, FETCHING, syscall="nanosleep")
    patterns = SPINNING | {3: "idle"}
    assert answer_of_case(observed(patterns, late)) == ("dataloader_stall", [3])
    assert answer_of_case(observed(SPINNING | {5: "working"}, late)) == ("dataloader_stall", [3])


def stuck(case: Case, calls) -> Case:
    """Return the case with calls of the driver that do not return: seconds by rank."""
    nodes = []
    for node in case.nodes:
        made = tuple(
            Observation(
                source="nvml",
                subject=f"pci:0000:{rank:02x}:00",
                name="nvml_stuck",
                age_s=age_s,
                text=f"nvmlDeviceGetPowerUsage of GPU {rank} has not returned",
                pid=case.ranks[rank].pid,
            )
            for rank, age_s in calls.items()
            if case.ranks[rank].node == node.node
        )
        nodes.append(replace(node, observations=node.observations + made))
    return replace(case, nodes=tuple(nodes))


def test_the_gpu_for_which_the_driver_was_blocked_first_is_named():
    diagnosis = diagnose(stuck(observed(SPINNING), {5: 31.0, 6: 29.0}))
    assert (diagnosis.cause.value, [each.rank for each in diagnosis.suspects]) == (
        "gpu_driver_stuck",
        [5],
    )
    assert diagnosis.domain.value == "gpu"
    assert "nvmlDeviceGetPowerUsage of GPU 5 has not returned for 31 s" in diagnosis.summary


def test_a_slow_call_accuses_nobody():
    assert answer_of_case(stuck(observed(SPINNING), {5: 3.2}))[1] == []


def test_a_stuck_call_for_a_gpu_that_waits_is_not_the_reason_while_a_rank_is_elsewhere():
    late = a_rank(3, FETCHING, syscall="nanosleep")
    diagnosis = diagnose(stuck(observed(SPINNING, late), {5: 31.0}))
    assert [each.rank for each in diagnosis.suspects] == [3]
    assert any("has not returned" in each.text for each in diagnosis.evidence)


@pytest.mark.parametrize(
    "name",
    [
        "behind_collective_odd_gpu_in_named_function_queued",
        "behind_collective_odd_gpu_queued",
        "gpu_fault_idle_gpu_in_named_function_queued",
        "gpu_fault_idle_gpu_queued",
    ],
)
def test_the_hosts_of_recorded_gpus_that_differ_do_nothing_but_wait(name):
    """So their incidents come soon."""
    diagnosis = diagnose(read_golden(GOLDENS[0].parent / name))
    assert (diagnosis.is_shown_by_gpus, diagnosis.suspects_rest) == (True, True)
