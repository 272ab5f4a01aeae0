"""From how many ranks each source of evidence comes."""

from dataclasses import replace

import msgspec
import pytest

from tests.diagnosis.builders import (
    IN_USER_CODE,
    a_case,
    a_native,
    a_rank,
    picture_of,
    ranks_in,
    with_rank,
)
from tests.diagnosis.test_goldens import GOLDENS
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.gaps import measure_coverage
from watchtower.diagnosis.picture import take_picture
from watchtower.evidence.case import Case, NodeEvidence, Presence
from watchtower.wire.observations import Observation
from watchtower.wire.report import AgentGaps

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
