"""A real hung rank: what it did in the last minutes, and what it wrote, is with its incident."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.system.small_jobs import beside
from tests.waiting import wait_until
from watchtower.drills.job import TrainingJob
from watchtower.drills.launching import Layout

DETECTION = {"suspect_floor_s": 2, "hung_floor_s": 3}
STEP_S = 0.3
SUSPECT = 2
PATIENCE_S = 120.0


def ask(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}{path}", timeout=30) as answer:
        body = answer.read().decode()
    return json.loads(body) if path.startswith("/api") else body


@contextmanager
def hung_job(folder: Path, *options: str) -> Iterator[tuple[str, str, TrainingJob]]:
    """Stop a rank of a job; yield the tower, the id of the incident, and the job."""
    environment = beside(folder, DETECTION, nodes=2)
    environment.agent_options = options
    with environment:
        job = TrainingJob("series", "stdlib", Layout(ranks=4, nodes=2), folder)
        job.launch({"step_s": STEP_S, "beats": True})

        def step() -> int:
            job.poll()
            return job.log.step or 0

        try:
            wait_until(lambda: step() >= 20, "the job steps", PATIENCE_S)
            job.signal(SUSPECT, signal.SIGSTOP)
            url, found = environment.tower_url, list[dict[str, Any]]()

            def has_suspect() -> bool:
                found[:] = ask(url, "/api/v1/incidents?drills=true")["items"]
                return bool(found) and found[0]["suspect_ranks"] == str(SUSPECT)

            wait_until(has_suspect, "an incident", PATIENCE_S)
            yield url, found[0]["id"], job
        finally:
            job.signal(SUSPECT, signal.SIGCONT)
            job.end()


def wait_for_series(url: str, ident: str) -> dict[str, Any]:
    answers = [{}]

    def has_both() -> bool:
        answers.append(ask(url, f"/api/v1/incidents/{ident}/series"))
        nodes = {one["node"] for one in answers[-1]["items"]}
        return len(nodes) == 2 and answers[-1]["items"][0]["is_suspect"]

    wait_until(has_both, "series of both nodes", PATIENCE_S)
    return answers[-1]


def lanes_of(series: dict[str, Any], rank: int) -> dict[str, list[float | None]]:
    item = next(one for one in series["items"] if one["rank"] == rank)
    return {lane["name"]: lane["values"] for lane in item["lanes"]}


def test_the_traces_and_the_output_of_a_stopped_rank_are_with_its_incident(tmp_path):
    with hung_job(tmp_path, "--output-lines", "20") as (url, ident, _):
        series = wait_for_series(url, ident)
        assert series["items"][0]["rank"] == SUSPECT
        lanes = lanes_of(series, SUSPECT)
        steps = [step for step in lanes["step"] if step is not None]
        assert steps == sorted(steps)
        assert steps[-1] >= steps[0] + 3
        assert lanes["state"][-1] == ord("T")
        assert "step" in lanes_of(series, next(o["rank"] for o in series["items"][1:]))
        lines = {each["stream"]: each["lines"] for each in series["outputs"]}
        assert any("started" in line for line in lines["stdout"])
        assert {each["rank"] for each in series["outputs"]} == {SUSPECT}
        page = ask(url, f"/incidents/{ident}")
        assert f"rank {SUSPECT} on" in page
        assert "sleeping -&gt; stopped" in page
        assert f"Last lines of rank {SUSPECT}" in page


def test_without_the_option_no_line_is_read(tmp_path):
    with hung_job(tmp_path) as (url, ident, _):
        assert wait_for_series(url, ident)["outputs"] == []
        assert ask(url, f"/api/v1/incidents/{ident}")["outputs"] == []
