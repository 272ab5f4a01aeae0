"""Two drills on one machine: what ends the job of one spares the other, whatever their names."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.waiting import wait_until
from watchtower.drills.job import TrainingJob
from watchtower.drills.launching import Layout

pytestmark = pytest.mark.timeout(120)


def launch(folder: Path) -> TrainingJob:
    folder.mkdir()
    job = TrainingJob("llama", "stdlib", Layout(ranks=1, nodes=1), folder)
    job.launch({"step_s": 0.1})
    return job


def test_the_end_of_a_job_spares_another_job_of_its_name(tmp_path: Path):
    with contextlib.ExitStack() as stack:
        first, second = launch(tmp_path / "first"), launch(tmp_path / "second")
        stack.callback(first.end)
        stack.callback(second.end)

        def have_started() -> bool:
            first.poll()
            second.poll()
            return 0 in first.log.pids and 0 in second.log.pids

        wait_until(have_started, "both jobs have started")
        first.end()
        assert first.has_ended()
        assert not second.has_ended()
        second.end()
        assert second.has_ended()
