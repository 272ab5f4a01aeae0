from dataclasses import replace

import msgspec
import pytest

from tests.diagnosis.builders import (
    IN_USER_CODE,
    a_case,
    a_failure,
    a_missing_rank,
    a_native,
    a_rank,
    a_silent_rank,
    picture_of,
    ranks_in,
    with_rank,
)
from tests.diagnosis.test_goldens import GOLDENS
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.gaps import MAX_GAPS, find_gaps, measure_coverage
from watchtower.diagnosis.picture import take_picture
from watchtower.evidence.case import Case, NodeEvidence, Presence
from watchtower.wire.collectives import RankCollectives
from watchtower.wire.dumps import FailureKind
from watchtower.wire.observations import Observation
from watchtower.wire.report import AgentGaps


def gaps(*others, count=8, **values):
    built = with_rank(ranks_in(count), *others)
    return list(find_gaps(picture_of(built, **values)))


def test_a_complete_case_lacks_nothing():
    assert gaps() == []


def test_a_silent_node_is_named_with_its_ranks():
    nodes = (
        NodeEvidence(node="gpu-00", silent_for_s=14),
        NodeEvidence(node="gpu-01", silent_for_s=0),
    )
    (text,) = gaps(a_silent_rank(0), a_silent_rank(1), nodes=nodes)
    assert all(value in text for value in ("gpu-00", "14 s", "0-1"))


def test_ranks_that_an_agent_no_longer_reports_are_named_with_their_node():
    ranks = [a_rank(r, presence=Presence.UNREPORTED, dumps=0) for r in (0, 1)]
    nodes = (NodeEvidence(node=ranks[0].evidence.node, silent_for_s=0),)
    (text,) = gaps(*ranks, nodes=nodes)
    assert all(value in text for value in (f"agent on {nodes[0].node}", "0-1", "--match"))


def limited(*names):
    limits = AgentGaps(python_stacks="py-spy is not installed", process="io is closed")
    return tuple(NodeEvidence(node=name, silent_for_s=0, limits=limits) for name in names)


def test_what_an_agent_cannot_do_is_told_where_a_stack_is_missing():
    text = gaps(a_rank(0, dumps=0), nodes=limited("gpu-00"))
    assert text[:2] == ["gpu-00: py-spy is not installed", "gpu-00: io is closed"]


def test_what_an_agent_may_not_see_is_told_when_a_rank_was_never_seen():
    text = gaps(a_missing_rank(3), nodes=limited("gpu-00"))
    assert "gpu-00: io is closed" in text


def test_processes_that_are_not_watched_are_told_when_a_rank_was_never_seen():
    sentence = "2 processes (pid 7, 8) are not watched: wrong rank variables"
    nodes = (NodeEvidence(node="gpu-01", silent_for_s=0, unwatched=(sentence,)),)
    assert f"gpu-01: {sentence}" in gaps(a_missing_rank(3), nodes=nodes)
    assert gaps(nodes=nodes) == []


def test_what_an_agent_cannot_do_is_no_gap_where_nothing_is_missing():
    assert gaps(nodes=limited("gpu-00")) == []


def test_nodes_with_the_same_limit_share_a_sentence():
    names = [f"gpu-{number:02}" for number in range(6)]
    text = gaps(a_missing_rank(3), nodes=limited(*names))
    assert text == ["gpu-00, gpu-01, gpu-02, gpu-03 and 2 more nodes: io is closed"]


def test_failed_dumps_are_grouped_with_their_help():
    refused = a_failure(FailureKind.MISSING_TOOL, "install py-spy")
    text = gaps(
        a_rank(2, failure=refused), a_rank(5, failure=refused), a_rank(6, failure=a_failure())
    )
    assert text == [
        "ranks 2,5: no stack (missing tool): install py-spy",
        "rank 6: no stack (timeout)",
    ]


def test_a_failed_second_dump_is_no_gap():
    built = a_rank(2)
    first, second = built.evidence.dumps
    dumps = (first, replace(second, threads=(), failure=a_failure()))
    text = gaps(replace(built, evidence=replace(built.evidence, dumps=dumps)))
    assert text == ["rank 2: only one dump, so a slow rank cannot be distinguished from a hung one"]


def test_ranks_without_dumps_or_pages_are_named():
    text = gaps(a_rank(2, dumps=0), a_rank(3, step=None))
    assert text == [
        "rank 2: no stack was sampled",
        "rank 3: no heartbeat file, so the step is not known",
    ]


def test_two_processes_that_claim_one_rank_are_told():
    text = gaps(a_rank(2, rivals=("gpu-07 pid 12",)))
    assert text == ["rank 2: other processes claim the same rank: gpu-07 pid 12"]


def test_the_list_is_bounded():
    assert len(gaps(*(a_rank(rank, rivals=("x",)) for rank in range(40)), count=40)) == MAX_GAPS


def test_records_that_could_not_be_had_are_told_with_the_reason():
    built = a_rank(2)
    silent = RankCollectives(failure="its record socket does not answer")
    dumps = tuple(replace(dump, collectives=silent) for dump in built.evidence.dumps)
    text = gaps(replace(built, evidence=replace(built.evidence, dumps=dumps)))
    assert text == ["rank 2: no collective log: its record socket does not answer"]


def test_samples_that_an_agent_may_not_take_are_told_where_a_rank_runs():
    node = NodeEvidence(
        node="gpu-00",
        silent_for_s=0.5,
        limits=AgentGaps(native_places="running threads cannot be sampled"),
    )
    runs = a_rank(2, IN_USER_CODE, state="R", syscall="", active=True)
    assert gaps(runs, nodes=(node,)) == ["gpu-00: running threads cannot be sampled"]
    assert gaps(a_rank(2), nodes=(node,)) == []


def test_an_event_loop_hides_what_its_tasks_await():
    idle = (
        "EpollSelector.select @selectors.py:468 < BaseEventLoop._run_once @asyncio/base_events.py:9"
        " < Runner.run @asyncio/runners.py:118 < <module> /job/main.py:80"
    )
    assert gaps(a_rank(3, idle)) == [
        "rank 3: the event loop is idle: its stack does not show what its tasks await"
    ]


RANKS = ranks_in(8)
BUSY = a_rank(3, IN_USER_CODE, cpu=1.0, state="R", syscall="")


def a_node(name, *pids, **limits):
    patterns = [
        Observation(source="nvml", subject=f"pci:{pid}", name="gpu_pattern.idle", age_s=1, pid=pid)
        for pid in pids
    ]
    return NodeEvidence(
        node=name, silent_for_s=0.5, limits=AgentGaps(**limits), observations=tuple(patterns)
    )


def coverage_of(*nodes, ranks=RANKS):
    names = sorted({rank.evidence.node for rank in ranks})
    return measure_coverage(picture_of(ranks, nodes=tuple(nodes or map(a_node, names))))


def test_a_thread_that_runs_needs_a_native_place_and_one_that_sleeps_does_not():
    assert coverage_of()["native"] == 1
    assert coverage_of(ranks=with_rank(RANKS, BUSY))["native"] == 0.875
    known = a_rank(3, IN_USER_CODE, cpu=1.0, state="R", syscall="", native=a_native("python"))
    assert coverage_of(ranks=with_rank(RANKS, known))["native"] == 1


def test_gpus_count_only_where_there_are_any():
    assert "gpu" not in coverage_of()
    pids = [rank.evidence.pid for rank in RANKS[:2]]
    names = sorted({rank.evidence.node for rank in RANKS})
    nodes = [
        a_node(name, *pids) if name == RANKS[0].evidence.node else a_node(name) for name in names
    ]
    assert coverage_of(*nodes)["gpu"] == 0.25


def test_a_node_whose_agent_cannot_read_the_kernel_log_does_not_count():
    names = sorted({rank.evidence.node for rank in RANKS})
    trouble = "GPUs: NVML cannot be used; kernel log: /dev/kmsg cannot be read (EPERM)"
    nodes = [a_node(names[0], collectors=trouble), *map(a_node, names[1:])]
    on_first = sum(rank.evidence.node == names[0] for rank in RANKS)
    assert coverage_of(*nodes)["kernel_log"] == 1 - on_first / len(RANKS)
    assert coverage_of(a_node("other"))["kernel_log"] == 0


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_the_shares_of_a_golden_are_shares(folder):
    case = msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)
    found = diagnose(case).coverage
    assert all(0 <= share <= 1 for share in found.values())
    has_logs = any(dump.collectives for rank in case.ranks for dump in rank.dumps)
    assert not found.get("collective_log") or has_logs


def test_a_job_that_has_ended_has_no_shares():
    case = a_case(RANKS)
    ended = tuple(replace(rank, presence=Presence.ENDED) for rank in case.ranks)
    assert measure_coverage(take_picture(replace(case, ranks=ended))) == {}
