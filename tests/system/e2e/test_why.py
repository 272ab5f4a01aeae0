"""`watchtower why` at night: many jobs, somebody else awake, no tower on the port."""

from __future__ import annotations

import http.server
import json
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.towers import JSON, RunningTower, running_tower
from tests.waiting import wait_until
from watchtower.cli import main

REPORT = Path(__file__).parents[2] / "wire" / "messages" / "report.json"

pytestmark = pytest.mark.e2e

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(url: str, *words: str) -> tuple[int, str, str]:
        status = main([*words, "--tower", url])
        text = capsys.readouterr()
        return status, text.out, text.err

    return run


def report(tower: RunningTower, *jobs: str, dead: str = "") -> None:
    """One node with two ranks of each job; in one job a rank has died."""
    message = json.loads(REPORT.read_text("utf-8"))
    ranks = []
    for number, job in enumerate(jobs):
        for rank in message["ranks"]:
            ended = rank["ended"] if job == dead else None
            changes = {"job": job, "ended": ended, "pid": rank["pid"] + 1000 * number}
            ranks.append(rank | changes)
    body = json.dumps(message | {"ranks": ranks}).encode()
    request = urllib.request.Request(f"{tower.url}/ingest/v1/report", body, JSON)
    with urllib.request.urlopen(request, timeout=10):
        pass


def test_without_a_name_those_in_trouble_are_shown(tmp_path: Path, say: Ask):
    config = tmp_path / "patient.toml"  # the jobs report once, and a busy machine is slow to ask
    config.write_text("[detection]\nsuspect_floor_s = 3600\n")
    with running_tower(tmp_path, "--config", str(config)) as tower:
        status, _, err = say(tower.url, "why")
        assert (status, "No jobs. No agent is connected." in err) == (4, True)
        report(tower, "bert", "llama")
        status, text, _ = say(tower.url, "why", "--exit-code")
        assert (status, "None of 2 jobs is in trouble: bert, llama." in text) == (6, True)
        report(tower, "bert", "llama", dead="llama")
        wait_until(lambda: say(tower.url, "why", "--exit-code")[0] == 1, "llama is suspect")
        assert say(tower.url, "why")[1].startswith("llama: ")
        assert json.loads(say(tower.url, "why", "--json")[1])["job"] == "llama"
        assert say(tower.url, "why", "bert")[1].startswith("bert: not judged yet")


def test_who_is_awake_already_is_told(tmp_path: Path, say: Ask):
    config = tmp_path / "fast.toml"
    config.write_text((Path(__file__).parent / "fast.toml").read_text())
    with running_tower(tmp_path, "--config", str(config)) as tower:

        def incident() -> str:
            report(tower, "llama", dead="llama")
            found = json.loads(say(tower.url, "incidents", "--json")[1])["items"]
            return found[0]["id"] if found else ""

        wait_until(incident, "an incident is open")
        ident = incident()
        first = say(tower.url, "ack", ident, "--by", "ann", "--note", "looking at it")[1]
        assert first.endswith("is acknowledged by ann\n")
        again = say(tower.url, "ack", ident, "--by", "bob")[1]
        assert "acknowledged by bob; before: acknowledged 20" in again
        assert "by ann: looking at it" in again
        say(tower.url, "silence", "--job", "llama", "--for", "1h", "--reason", "new switch")
        text = say(tower.url, "why")[1]
        assert "by bob" in text
        assert "alerts of job llama are silenced until 20" in text
        assert ": new switch\n" in text


@pytest.fixture
def foreign_server() -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers everything with 200 and the same JSON."""
    answers = [b""]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[0])

        do_POST = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", answers
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "answer", [b"[]", b"null", b"{}", b'{"items": [1]}', b'{"items": [{}]}', b"<html>", b"[" * 9999]
)
def test_what_is_no_tower_is_said_to_be_none(foreign_server, say: Ask, answer: bytes):
    url, answers = foreign_server
    answers[0] = answer
    commands = (
        "why",
        "why x",
        "jobs",
        "incidents",
        "incident x",
        "ack x",
        "silence --user x --for 1h",
    )
    for words in commands:
        status, _, err = say(url, *words.split())
        assert status == 3, words
        assert "does not answer like a watchtower tower" in err, words


def test_a_tower_that_is_stopped_is_told_from_one_that_is_away(
    tmp_path: Path, say: Ask, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("watchtower.commands.client.TowerClient.__init__.__defaults__", (0.5,))
    with running_tower(tmp_path) as tower:
        tower.process.send_signal(signal.SIGSTOP)
        err = say(tower.url, "jobs")[2]
        assert "accepted the connection and did not answer in time" in err
        assert "watchtower serve" not in err
