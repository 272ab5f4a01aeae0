"""An agent stops, and another one starts, perhaps with another `--match`."""

from __future__ import annotations

import os
import signal

from tests.agent.agent_scene import RecordingTower, wait_until
from tests.system.agent.agent_processes import STOPS_S, Victim
from tests.system.agent.test_agent_end_to_end import Run, reported


def test_its_last_report_says_that_it_stops(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    agent = run_agent(tower.url, "--interval", "30")
    # A busy machine may delay the first report, or the first one may have no rank yet.
    wait_until(lambda: tower.reports and tower.reports[-1].get("ranks"), "it reports", 100.0)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(STOPS_S) == 0
    assert [report.get("stopping", False) for report in tower.reports[-2:]] == [False, True]
    assert len(tower.reports[-1]["ranks"]) == len(ranks)


def test_an_agent_that_does_not_watch_a_process_reports_its_end_if_the_tower_asks(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    agent = run_agent(tower.url)
    known = reported(tower)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(STOPS_S) == 0
    tower.missing = [{key: known[r][key] for key in ("pid", "start_time")} for r in (0, 1)]
    run_agent(tower.url, "--match", "OTHER=1")
    before, boot = len(tower.reports), tower.reports[-1]["boot"]
    assert boot
    wait_until(lambda: len(tower.reports) > before + 3, "the next agent reports")
    assert tower.reports[-1]["boot"] == boot
    assert (tower.reports[-1]["ranks"], tower.reports[-1]["gone"]) == ([], [])
    os.kill(ranks[0].pid, signal.SIGKILL)
    wait_until(lambda: tower.reports[-1]["gone"], "a process has ended")
    assert tower.reports[-1]["gone"] == tower.missing[:1]
