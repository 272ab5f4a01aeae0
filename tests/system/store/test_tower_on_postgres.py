"""A tower that keeps its incidents in PostgreSQL."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.system.e2e.drilled import CONFIG
from watchtower.commands.client import TowerClient
from watchtower.drills.catalogue import find_drill
from watchtower.drills.plain import PlainDisplay
from watchtower.drills.runner import Request, make_environment, run_drill
from watchtower.drills.settings import read_config

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(240)]


def test_an_incident_of_a_drill_is_there_after_the_tower_was_killed(url: str, tmp_path: Path):
    request = Request(
        drill=find_drill("exception"), ranks=4, backend="stdlib", config=read_config(CONFIG)
    )
    environment = make_environment(request, tmp_path, shared=True)
    environment.tower_options = ["--database", url]
    with environment:
        text = io.StringIO()
        result = run_drill(request, PlainDisplay(text), environment=environment)
        assert result.judgement.is_right, text.getvalue()
        client = TowerClient(environment.tower_url)
        before = client.incidents()
        assert len(before) == 1
        environment.shared = False
        environment.kill_tower()
        environment.restart_tower()
        after = TowerClient(environment.tower_url).incidents()
        assert [one["id"] for one in after] == [one["id"] for one in before]
    assert not list((tmp_path / "data").glob("*.db"))
