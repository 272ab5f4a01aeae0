"""A real job under a tool of torch, and rows named by commit."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from benchmarks.accuracy.live import TOOLS, monitored_barrier
from benchmarks.accuracy.live.__main__ import make_row
from benchmarks.accuracy.live.staging import Heard, play
from benchmarks.accuracy.live.tool import Said
from benchmarks.accuracy.results import key_of
from watchtower.drills.catalogue import find_drill
from watchtower.drills.settings import DrillSettings


def test_rows_of_a_tool_are_runs_of_their_own() -> None:
    drill = find_drill("busy_loop")
    heard = Heard(ranks=(3,), said=Said(accused=(3,), text="3"), fault_to_verdict_s=10.2)
    rows = [make_row(tool, drill, 8, heard, None) for tool in TOOLS]
    assert len({key_of(row) for row in rows} | {key_of(rows[0] | {"settings": "default"})}) == (
        len(rows) + 1
    )
    assert rows[0]["injected"] == {"ranks": [3], "cause": "busy_loop"}
    assert (rows[0]["accused"], rows[0]["fault_to_verdict_s"]) == ([3], 10.2)


@pytest.mark.torch
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: `make test-torch` installs it and runs these",
)
def test_monitored_barrier_names_the_sleeping_rank_of_a_real_job() -> None:
    tool = replace(monitored_barrier.TOOL, environment=lambda _: {"LIVE_THRESHOLD_S": "3"})
    settings = DrillSettings(step_s=0.1, warmup_steps=2, verdict_deadline_s=30)
    heard = play(tool, find_drill("dataloader_sleep"), 4, rank=2, settings=settings)
    assert (heard.ranks, heard.said.accused) == ((2,), (2,))
    assert heard.fault_to_verdict_s is not None
    assert heard.fault_to_verdict_s >= 2.5
