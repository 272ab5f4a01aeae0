"""Ranks that wait without sleeping, as in MPI: a hang is found in time, an evaluation is none."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.launching import MARK, node_mark
from watchtower.drills.stage import Stage

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(150)]

PROGRAM = Path(__file__).parent / "programs" / "busy_waits.py"
RANKS, CULPRIT = 4, 1
LONG_S = 15.0
DETECTION = {
    "suspect_floor_s": 2.0,
    "hung_floor_s": 3.0,
    "moving_floor_s": 6.0,
    "phase_patience_s": 600.0,
}
"""A job that steps several times a second is hung within 10 s, or in 10 minutes."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(
        tmp_path,
        nodes=1,
        interval_s=0.5,
        detection=dict(DETECTION),
        forwarded=False,
        start_deadline_s=60.0,
    )
    with stage:
        yield stage


@contextlib.contextmanager
def launched(stage: Stage, long_s: float) -> Iterator[None]:
    board = stage.folder / "board"
    board.write_bytes(bytes(8 * RANKS))
    with contextlib.ExitStack() as stack:
        for rank in range(RANKS):
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(board)],
                env={
                    **os.environ,
                    MARK: node_mark(stage.folder, 0),
                    "WATCHTOWER_JOB": "polls",
                    "WORLD_SIZE": str(RANKS),
                    "RANK": str(rank),
                    "CULPRIT": str(CULPRIT),
                    "LONG_S": str(long_s),
                },
                stdin=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def verdict_of(client: TowerClient) -> dict:
    try:
        return client.verdict("polls")
    except NotFoundError:
        return {"status": "unseen", "step": None}


def test_peers_that_poll_wait_for_a_rank_that_sleeps(stage: Stage):
    client = TowerClient(stage.tower_url)
    with launched(stage, 0.0):
        until = time.monotonic() + 60
        while (hung := verdict_of(client))["status"] != "hung":
            assert time.monotonic() < until, hung
            time.sleep(0.1)
    assert [suspect["rank"] for suspect in hung["suspects"]] == [CULPRIT]
    assert "busy_waits.py" in hung["suspects"][0]["where"]
    assert "3 ranks seem to wait for it in `<genexpr>`" in hung["summary"]
    assert hung["waiting"] == "0,2-3"
    assert hung["step"] == 14


def test_ranks_that_all_compute_at_a_line_are_not_hung(stage: Stage):
    """An evaluation that nobody marked, one rank of it in another function than the others."""
    client = TowerClient(stage.tower_url)
    seen: list[str] = []
    with launched(stage, LONG_S):
        until = time.monotonic() + 90
        while ((verdict := verdict_of(client))["step"] or 0) < 30:
            assert time.monotonic() < until, verdict
            seen += [verdict["status"]] if seen[-1:] != [verdict["status"]] else []
            time.sleep(0.1)
    assert "suspect" in seen
    assert "hung" not in seen
