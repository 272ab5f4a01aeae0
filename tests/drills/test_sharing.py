"""Which drills share tower and agents, and what a watcher asks a shared tower."""

from __future__ import annotations

import http.server
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchtower.drills.catalogue import DRILLS, find_drill
from watchtower.drills.client import PatientClient
from watchtower.drills.errors import DrillError
from watchtower.drills.plain import PlainDisplay
from watchtower.drills.runner import Request, can_share, make_environment, run_drill
from watchtower.drills.settings import Config, DrillSettings
from watchtower.drills.watch import Watch

ALONE = {
    "hung_then_cancelled_node_lost",
    "agent_dies",
    "clock_step",
    "co_located_jobs",
    "dead_storage",
    "hostile_neighbour",
    "node_lost",
    "symmetric",
    "tower_restart",
    "tower_restart_healthy",
    "tower_restart_suspect",
    "tower_unreachable",
    "throttled_straggler",
    "gpu_errors_beside_eval",
}
"""Drills that end a part, set its clock or GPUs, change a setting, cut links, have a job without a
name or many others."""


def test_drills_that_leave_tower_and_agents_as_they_are_can_share_them() -> None:
    config = Config(drill=DrillSettings(startup_grace_s=6), detection={"startup_grace_s": 6})
    drills = [drill for drill in DRILLS if "stdlib" in drill.backends]
    requests = [Request(drill=drill, backend="stdlib", config=config) for drill in drills]
    assert {each.drill.name for each in requests if not can_share(each)} == ALONE


def test_a_drill_that_changes_a_setting_of_the_tower_has_a_tower_of_its_own() -> None:
    drill = find_drill("init_sleep")
    assert not can_share(Request(drill=drill, backend="stdlib", config=Config()))


def test_a_drill_is_not_run_in_a_shared_environment_that_it_would_break(tmp_path: Path) -> None:
    request = Request(drill=find_drill("agent_dies"), backend="stdlib", config=Config())
    environment = make_environment(request, tmp_path, shared=True)
    with pytest.raises(DrillError, match="needs a tower and agents of its own"):
        run_drill(request, PlainDisplay(io.StringIO()), environment=environment)


@pytest.fixture
def tower() -> Iterator[tuple[str, list[str]]]:
    """A server without incidents, and what it was asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = b'{"items": []}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("alone", "asked_for"), [(True, False), (False, True)])
def test_a_shared_tower_is_asked_for_the_incidents_of_the_own_job(
    tower: tuple[str, list[str]], alone: bool, asked_for: bool
) -> None:
    url, asked = tower
    Watch(PatientClient(url), "drill-1", ("hung",), alone=alone).read_incidents()
    (path,) = asked
    assert ("job=drill-1" in path) is asked_for
