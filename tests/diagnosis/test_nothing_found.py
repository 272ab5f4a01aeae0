import re
from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    IN_USER_CODE,
    a_case,
    a_dead_rank,
    a_failure,
    a_rank,
    a_silent_rank,
    ranks_in,
    with_rank,
)
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.wire.observations import Observation
from watchtower.wire.verdict import Cause


def bare(rank, **values):
    """A rank that py-spy got nothing of."""
    return a_rank(rank, failure=a_failure(help_text="py-spy did not return"), **values)


def test_without_stacks_the_kernels_words_and_the_heartbeats_are_shown():
    sleeper = bare(0, syscall="clock_nanosleep", step=40, age_s=21.0)
    answer = diagnose(a_case([sleeper, *(bare(rank, age_s=19.0) for rank in range(1, 4))]))
    assert answer.cause is Cause.UNKNOWN
    assert "4 ranks returned no stack" in answer.summary
    assert "did not answer" not in answer.summary
    shown = [
        ("0", "nanosleep"),
        ("1-3", "recvfrom"),
        ("0", "step 40, 21 s"),
        ("1-3", "step 41, 19 s"),
    ]
    assert [item.ranks for item in answer.evidence] == [ranks for ranks, _ in shown]
    assert all(text in item.text for item, (_, text) in zip(answer.evidence, shown, strict=True))
    assert all(value in answer.next_steps[0] for value in ("rank 0", "gpu-00", "--pid 4000"))
    assert "watchtower-agent doctor" in answer.next_steps[1]


def test_where_all_wait_in_several_calls_each_is_told_with_its_stack_and_step():
    stage = "_communicate /job/pp.py:12 < {} /job/pp.py:{} < <module> main.py:9"
    built = [
        a_rank(rank, stage.format(call, line), syscall="futex", step=step)
        for rank, (call, line, step) in enumerate(
            [("recv_backward", 20, 14)] * 2 + [("recv_forward", 15, 15)] * 2
        )
    ]
    answer = diagnose(a_case(built))
    assert answer.cause is Cause.UNKNOWN
    assert "recv_backward (ranks 0-1) and recv_forward (ranks 2-3)" in answer.summary
    assert [item.text.partition(" < ")[0] for item in answer.evidence] == [
        "ranks 0-1: _communicate pp.py:12",
        "ranks 2-3: _communicate pp.py:12",
        "ranks 0-1: last step 14, 9 s ago",
        "ranks 2-3: last step 15, 9 s ago",
    ]


def test_a_job_that_is_not_nobodys_fault_always_has_a_next_step():
    for built in (
        ranks_in(2, IN_USER_CODE),
        [bare(0), bare(1)],
        [bare(0, step=None)],
        [a_rank(0, dumps=0), a_rank(1, dumps=0)],
        [a_silent_rank(0), a_silent_rank(1)],
        [a_dead_rank(0, code=0), a_dead_rank(1)],
    ):
        assert diagnose(a_case(built)).next_steps


def with_event(built, node, pid=None):
    text = "watchdog: BUG: soft lockup - CPU#3 stuck for 26s!"
    event = Observation(
        source="kernel_log", subject="node", name="soft_lockup", age_s=12.0, text=text, pid=pid
    )
    case = a_case(built)
    nodes = tuple(
        replace(each, observations=(event,)) if each.node == node else each for each in case.nodes
    )
    return replace(case, nodes=nodes)


def pointed_at(answer):
    """The nodes that the steps of a verdict name, in their order."""
    text = " ".join(answer.next_steps)
    return list(dict.fromkeys(re.findall(r"gpu-\d\d", text)))


@pytest.mark.parametrize(
    "built",
    [
        [bare(rank) for rank in range(8)],
        [a_rank(rank, IN_USER_CODE, cpu=1.0) for rank in range(8)],
        [a_rank(rank, IN_USER_CODE) for rank in range(8)],
    ],
)
def test_the_advice_of_an_unknown_verdict_points_to_the_node_with_evidence(built):
    answer = diagnose(with_event(built, "gpu-01"))
    assert answer.cause is Cause.UNKNOWN
    assert any("gpu-01" in item.text for item in answer.evidence)
    assert pointed_at(answer) == ["gpu-01"]


def test_the_rank_that_the_evidence_is_about_is_the_one_to_check():
    answer = diagnose(with_event([bare(rank) for rank in range(8)], "gpu-01", pid=4006))
    assert "check rank 6 on gpu-01: `py-spy dump --pid 4006`" in answer.next_steps


def test_a_rank_that_differs_is_checked_before_a_node_with_an_event():
    built = with_rank(ranks_in(8), bare(1))
    answer = diagnose(with_event(built, "gpu-01"))
    assert answer.cause is Cause.UNKNOWN
    assert pointed_at(answer) == ["gpu-00", "gpu-01"]
