"""Real agents with the addresses of two towers, whose owner is killed while a job hangs."""

from __future__ import annotations

import http.cookies
import json
import os
import struct
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.cluster.cluster import TowerProcess
from tests.system.small_jobs import CULPRIT, RANKS, beside, started
from tests.system.store.conftest import server, url
from tests.waiting import wait_until
from watchtower.access.tokens import find_client_token
from watchtower.commands.client import TowerClient
from watchtower.drills.launching import free_port
from watchtower.service.interpreter import module_command

__all__ = ["server", "url"]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

TOKENS = {"agent": "a" * 24, "reader": "r" * 24, "operator": "o" * 24}


@dataclass
class Standby:
    """Starts a second tower beside an environment."""

    folder: Path
    database: str

    def make(self, port: int, *words: str) -> TowerProcess:
        words = ("--port", str(port), "--data-dir", str(self.folder / "other"), *words)
        command = module_command("watchtower", "serve", "--database", self.database, *words)
        return TowerProcess("other", self.folder, command, port)


@pytest.mark.ptrace
def test_an_agent_goes_on_with_the_other_tower_and_no_acknowledged_dump_is_lost(
    tmp_path: Path, server, url: str
):
    board = tmp_path / "board"
    board.write_bytes(struct.pack("q", 0) * RANKS + struct.pack("q", -1))
    place, port = beside(tmp_path), free_port()
    place.tower_options = ["--database", url]
    place.other_towers = [f"http://127.0.0.1:{port}"]
    stored = lambda: {row[0] for row in server.execute(f"SELECT id FROM {space_of(url)}.dumps")}  # noqa: E731
    with place:
        other = Standby(tmp_path, url).make(port, "--config", str(tmp_path / "tower.toml"))
        other.start()
        try:
            with started(place, "busy_waits", str(board), name="busy_waits", LONG_S="0") as job:
                calm = job.wait_for(lambda found: "usual time" in found.get("summary", ""), 60.0)
                with board.open("r+b") as file:
                    file.seek(8 * RANKS)
                    file.write(struct.pack("q", int(calm["step"]) + 20))
                wait_until(stored, "the first dumps are stored", patience_s=60)
                before = stored()
                place.kill_tower()
                job.client = TowerClient(",".join([place.tower_url, *place.other_towers]))
                wait_until(lambda: other.readyz().get("ready"), "it took over", patience_s=30)
                hung = job.wait_for(lambda verdict: verdict["status"] == "hung", 60.0)
                assert [suspect["rank"] for suspect in hung["suspects"]] == [CULPRIT]
                assert "busy_waits.py" in hung["suspects"][0]["where"]
                assert before <= stored()
                assert len(job.client.incidents()) == 1
        finally:
            other.kill()


def space_of(url: str) -> str:
    return url.rpartition("%3D")[2]


def ask(address: str, path: str, token: str = "", **headers: str) -> tuple[int, dict[str, Any]]:
    """Return status and JSON of a GET."""
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{address}{path}", headers=headers), timeout=10
        ) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, {}


def test_tokens_sessions_and_silences_are_valid_on_the_tower_that_takes_over(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
):
    for scope, token in TOKENS.items():
        monkeypatch.setenv(f"WATCHTOWER_{scope.upper()}_TOKEN", token)
    towers = [Standby(tmp_path / str(n), url).make(free_port()) for n in range(2)]
    for tower in towers:
        tower.folder.mkdir()
        tower.start()
    first, second = towers
    try:
        wait_until(lambda: first.readyz().get("ready"), "the first one owns the jobs")
        cookie = log_in(first.url, TOKENS["operator"])
        assert ask(first.url, "/api/v1/silences", Cookie=cookie)[0] == 200
        monkeypatch.setenv("WATCHTOWER_TOKEN", TOKENS["operator"])
        token = find_client_token("", os.environ)
        client = TowerClient(f"{first.url},{second.url}", token=token)
        client.silence("job", "llama", 600.0, reason="repair")
        first.kill()
        wait_until(lambda: second.readyz().get("ready"), "it took over", patience_s=30)
        status, found = ask(second.url, "/api/v1/silences", Cookie=cookie)
        assert (status, [one["reason"] for one in found["items"]]) == (200, ["repair"])
        assert ask(second.url, "/api/v1/silences", TOKENS["reader"])[0] == 200
        assert ask(second.url, "/api/v1/silences", "x" * 24)[0] == 401
        assert [one["reason"] for one in client.silences()] == ["repair"]
    finally:
        for tower in towers:
            if tower.process is not None:
                tower.kill()


def log_in(address: str, token: str) -> str:
    """Return the cookie of a session."""
    form = urllib.parse.urlencode({"token": token}).encode()
    request = urllib.request.Request(f"{address}/login", form, {"Origin": address})

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    try:
        answer = urllib.request.build_opener(NoRedirect).open(request, timeout=10)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        cookies = http.cookies.SimpleCookie("; ".join(answer.headers.get_all("Set-Cookie") or ()))
    return "; ".join(f"{name}={morsel.value}" for name, morsel in cookies.items())
