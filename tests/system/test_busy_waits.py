"""Ranks that wait without sleeping, as in MPI: a hang is detected in time, an evaluation is not."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.system.small_jobs import CULPRIT, RANKS, SmallJob, launched

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(150)]

LONG_S = 15.0
"""Longer than it takes to become hung."""


@pytest.fixture
def board(tmp_path: Path) -> Path:
    board = tmp_path / "board"
    board.write_bytes(struct.pack("q", 0) * RANKS + struct.pack("q", -1))
    return board


def end_calm(job: SmallJob, board: Path) -> int:
    """Let the fault come when the tower knows how long steps take; returns its step."""
    calm = job.wait_for(lambda verdict: "usual time" in verdict.get("summary", ""), 60.0)
    at = int(calm["step"]) + 20
    with board.open("r+b") as file:
        file.seek(8 * RANKS)
        file.write(struct.pack("q", at))
    return at


def test_peers_that_poll_wait_for_a_rank_that_sleeps(tmp_path: Path, board: Path):
    with launched("busy_waits", tmp_path, str(board), LONG_S="0") as job:
        at = end_calm(job, board)
        hung = job.wait_for(lambda verdict: verdict["status"] == "hung", 60.0)
    assert [suspect["rank"] for suspect in hung["suspects"]] == [CULPRIT]
    assert "busy_waits.py" in hung["suspects"][0]["where"]
    assert f"3 ranks seem to wait for rank {CULPRIT} in `<genexpr>`" in hung["summary"]
    assert hung["waiting"] == "0,2-3"
    assert hung["step"] == at - 1


def test_ranks_that_all_compute_at_a_line_are_not_hung(tmp_path: Path, board: Path):
    """An unmarked evaluation, one rank of it in another function than the others."""
    seen: set[str] = set()
    with launched("busy_waits", tmp_path, str(board), LONG_S=str(LONG_S)) as job:
        at = end_calm(job, board)

        def is_over(verdict: dict) -> bool:
            seen.add(verdict["status"])
            assert verdict["status"] != "hung", verdict
            return (verdict["step"] or 0) > at

        job.wait_for(is_over, 90.0)
    assert "suspect" in seen
