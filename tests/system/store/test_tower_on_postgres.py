"""A tower that keeps its incidents in PostgreSQL."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from tests.system.e2e.drilled import CONFIG
from tests.towers import running_tower
from watchtower.commands.client import ClientError, TowerClient
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
        again = TowerClient(environment.tower_url)
        until(lambda: answers(again), 30)  # it is on standby until its own lease is over
        after = again.incidents()
        assert [one["id"] for one in after] == [one["id"] for one in before]
    assert not list((tmp_path / "data").glob("*.db"))


def answers(client: TowerClient) -> bool:
    try:
        client.jobs()
    except ClientError:
        return False
    return True


def ask(tower, path: str) -> dict:
    with urllib.request.urlopen(f"{tower.url}{path}", timeout=10) as answer:
        return json.load(answer)


def until(condition, seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def store_of(tower) -> str:
    return ask(tower, "/readyz")["store"]


@contextlib.contextmanager
def down(server):
    server.stop(signal.SIGQUIT)
    try:
        yield
    finally:
        server.start()


@contextlib.contextmanager
def standing_still(server):
    for pid in server.children():
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in server.children():
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("trouble", [down, standing_still])
def test_a_tower_answers_and_says_so_while_the_server_is_away(trouble, server, url, tmp_path):
    with running_tower(tmp_path, "--database", url) as tower:
        assert store_of(tower) == "works"
        with trouble(server):
            until(lambda: store_of(tower).startswith("fails since"))
            began = time.monotonic()
            said = store_of(tower)
            assert time.monotonic() - began < 1
            assert "check that PostgreSQL runs" in said
            assert ask(tower, "/readyz")["ready"], "it detects hangs without its store"
        until(lambda: store_of(tower) == "works")
