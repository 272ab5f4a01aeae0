"""Opinions of the tools inside a job, read by value from text that they printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accuracy.live import TOOLS, monitored_barrier, nvrx
from benchmarks.accuracy.live.__main__ import why_not
from benchmarks.accuracy.live.staging import read_text
from benchmarks.accuracy.live.tool import INSIDE, SAID_MAX, shorten
from watchtower.drills.catalogue import DRILLS

RANK_0_RAISED = """\
[rank0]:[E1121 09:51:05.890870637 ProcessGroupGloo.cpp:2901] [Rank 0]: Rank 4 failed to pass \
monitoredBarrier in 10000 ms
[rank0]:[E1121 09:51:05.890901207 ProcessGroupGloo.cpp:67] [Rank 0]: Ranks 4 failed to pass \
monitoredBarrier in 10000 ms
[rank0]: Traceback (most recent call last):
[rank0]:     return group_to_use.monitored_barrier(  # type:ignore[attr-defined]
[rank0]: RuntimeError: [Rank 0]: Ranks 4 failed to pass monitoredBarrier in 10000 ms
"""
SEVERAL_MISSED = """\
[rank0]: RuntimeError: [Rank 0]: Ranks 1, 2, 3, 4, 5, 6, 7 failed to pass monitoredBarrier in \
10000 ms
"""
RANK_6_RAISED = """\
[rank6]: RuntimeError: Rank 6 successfully reached monitoredBarrier, but received errors while \
waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.
[rank6]:  Original exception:
[rank6]: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed \
by peer [127.0.0.1]:16068.
"""
STARTED = """\
[2026-11-21 09:51:32,423] [ERROR] [ft_launcher4863@vm] gpu_ib_map is empty. Disable NIC health \
check for local_rank: 2
"""
MONITORS_FIRED = """\
[2026-11-21 09:52:04,865] [WARNING] [RankMonServer4867@vm:0] Did not get subsequent heartbeat. \
Waited 10.00 seconds.
[2026-11-21 09:52:04,866] [WARNING] [RankMonServer4867@vm:0] FT timeout elapsed.
[2026-11-21 09:52:04,900] [WARNING] [RankMonServer4870@vm:3] Did not get subsequent heartbeat. \
Waited 10.00 seconds.
[2026-11-21 09:52:04,900] [WARNING] [RankMonServer4870@vm:3] FT timeout elapsed.
"""
LAUNCHER_ACCUSED = """\
[2026-11-21 09:52:04,922] [ERROR] [ft_launcher4863@vm] failed (exitcode: -9) local_rank: 0 \
(pid: 4875) of binary: /usr/bin/python
[2026-11-21 09:52:04,988] [ERROR] [ft_launcher4863@vm] failed (exitcode: -9) local_rank: 0 \
(pid: 4875) of binary: /usr/bin/python
"""


def test_rank_0_of_a_monitored_barrier_names_who_did_not_come() -> None:
    opinion = monitored_barrier.read({"a": RANK_0_RAISED, "b": RANK_6_RAISED})
    assert opinion is not None
    assert (opinion.accused, opinion.is_final) == ((4,), True)
    assert opinion.text.endswith("Ranks 4 failed to pass monitoredBarrier in 10000 ms")


def test_a_monitored_barrier_may_name_several_ranks() -> None:
    opinion = monitored_barrier.read({"a": SEVERAL_MISSED})
    assert opinion is not None
    assert opinion.accused == (1, 2, 3, 4, 5, 6, 7)


def test_the_other_ranks_of_a_monitored_barrier_accuse_nobody() -> None:
    opinion = monitored_barrier.read({"b": RANK_6_RAISED})
    assert opinion is not None
    assert (opinion.accused, opinion.is_final) == ((), False)
    assert "check rank 0 logs" in opinion.text


def test_a_job_that_trains_has_said_nothing() -> None:
    assert monitored_barrier.read({"a": 'step {"step": 1, "loss": 0.4}\n'}) is None
    assert nvrx.read({"a": STARTED}) is None


def test_the_monitors_of_nvrx_tell_of_a_stall_and_its_launcher_accuses() -> None:
    opinion = nvrx.read({"a": STARTED + MONITORS_FIRED})
    assert opinion is not None
    assert (opinion.accused, opinion.is_final) == ((), False)
    opinion = nvrx.read({"a": STARTED + MONITORS_FIRED + LAUNCHER_ACCUSED})
    assert opinion is not None
    assert (opinion.accused, opinion.is_final) == ((0,), True)
    assert opinion.text == (
        "Did not get subsequent heartbeat. Waited 10.00 seconds. (monitors of ranks 0, 3)"
        " | failed (exitcode: -9) local_rank: 0"
    )


def test_what_was_said_is_kept_short_and_once() -> None:
    assert shorten([" a ", "b", "a"]) == "a | b"
    assert len(shorten(["x" * 10 * SAID_MAX])) == SAID_MAX


def test_only_files_of_the_job_are_read(tmp_path: Path) -> None:
    (tmp_path / "drill-1-start-1-rank-0.err").write_text("its words")
    (tmp_path / "drill-2-start-1-rank-0.err").write_text("another's")
    assert read_text(tmp_path, "drill-1") == {"drill-1-start-1-rank-0.err": "its words"}


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_fault_is_run_or_has_its_reason_why_not(tool: object) -> None:
    faults = [drill for drill in DRILLS if drill.is_fault and "torch" in drill.backends]
    excused = {drill.name for drill in faults if why_not(tool, drill)}
    assert {"never_started", "dataloader_sleep_no_heartbeat", "tower_restart"} <= excused
    assert not excused & {"dataloader_sleep", "sigstop", "tp_dp_cascade", "exception"}
    assert (INSIDE / tool.name / "watchtower_heartbeat.py").is_file()
