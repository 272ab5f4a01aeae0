"""The commands against a real tower process."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.towers import JSON, running_tower
from watchtower.cli import main
from watchtower.service.interpreter import module_command

MESSAGES = Path(__file__).parents[2] / "wire" / "messages"

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen]]:
    # It is killed also if the first report fails: else the fixture would wait for its end.
    with running_tower(tmp_path_factory.mktemp("tower")) as running:
        post(running.url, "/ingest/v1/report", "report.json")
        yield running.url, running.process


@pytest.fixture
def ask(tower, capsys: pytest.CaptureFixture[str]):
    def run(*words: str) -> tuple[int, str, str]:
        status = main([*words, "--tower", tower[0]])
        text = capsys.readouterr()
        return status, text.out, text.err

    return run


def post(url: str, path: str, name: str) -> None:
    request = urllib.request.Request(url + path, (MESSAGES / name).read_bytes(), JSON)
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status == 200


def test_jobs_are_listed_as_a_table_and_as_json(ask):
    status, out, _ = ask("jobs")
    assert status == 0
    assert out.splitlines()[0].split() == [
        "JOB",
        "NAME",
        "USER",
        "STATUS",
        "STEP",
        "RANKS",
        "ATTEMPT",
        "SILENCED",
        "DETAIL",
    ]
    assert "llama-70b" in out
    assert json.loads(ask("jobs", "--json")[1])["items"][0]["job"] == "llama-70b"


def test_why_needs_no_name_when_there_is_one_job(ask):
    assert "llama-70b" in ask("why")[1]
    assert json.loads(ask("why", "llama-70b", "--json")[1])["job"] == "llama-70b"


def test_json_is_the_answer_of_the_api(ask, tower):
    calls = {
        ("jobs",): "/api/v1/jobs",
        ("why", "llama-70b"): "/api/v1/jobs/llama-70b/verdict",
        ("incidents",): "/api/v1/incidents",
    }
    for words, path in calls.items():
        with urllib.request.urlopen(tower[0] + path, timeout=10) as response:
            answer = json.load(response)
        assert json.loads(ask(*words, "--json")[1]).keys() == answer.keys()


def test_what_is_not_there_is_status_4_with_a_suggestion(ask):
    status, out, err = ask("why", "llama-7b")
    assert (status, out) == (4, "")
    assert "there is no job 'llama-7b'" in err
    assert err.endswith("Did you mean 'llama-70b'?\n")
    assert ask("incident", "nothing")[0] == 4
    assert "there is no incident 'nothing'" in ask("export", "nothing")[2]


def test_no_incidents_is_an_answer(ask):
    text = "No incidents. 1 agent is connected (gpu-042) and watches 2 ranks.\n"
    assert ask("incidents")[:2] == (0, text)
    assert json.loads(ask("incidents", "--json")[1]) == {"items": [], "next_cursor": None}


def test_a_job_that_was_just_found_is_exit_code_6(ask):
    assert ask("why", "--exit-code")[0] in (1, 6)  # by then its agent may be silent


def test_a_job_is_silenced_for_a_while(ask):
    words = ("--for", "1h30m", "--reason", "new switch", "--by", "bob")
    status, out, err = ask("silence", "--job", "llama-70b", *words)
    assert (status, err) == (0, "")
    assert out.startswith("alerts of job llama-70b are silenced until 20")
    assert "UTC (in 89 min)" in out or "UTC (in 90 min)" in out
    assert json.loads(ask("jobs", "--json")[1])["items"][0]["silenced_until"]
    listed = ask("silences")[1].splitlines()
    assert listed[0].split() == ["ID", "SILENCED", "NAME", "UNTIL", "BY", "REASON"]
    ident, kind, name, *_ = listed[1].split()
    assert (kind, name) == ("job", "llama-70b")
    assert listed[1].endswith("bob  new switch")
    ended = (0, "alerts of job llama-70b are not silenced any more\n", "")
    assert ask("silence", "--remove", ident[:20].lower()) == ended
    assert ask("silence", "--remove", ident)[0] == 4
    assert ask("silences")[1] == "No job, node or user is silenced.\n"


def test_a_node_or_user_is_silenced_with_a_hint_if_it_is_unknown(ask):
    node = ask("silence", "--node", "gpu-42", "--for", "1m")[1]
    assert node.startswith("alerts of node gpu-42 are silenced until 20")
    assert node.endswith(
        "No agent reports this node now; connected agents are on gpu-042. Did you mean 'gpu-042'?\n"
    )
    assert "No agent reports" not in ask("silence", "--node", "gpu-042", "--for", "1m")[1]
    user = ask("silence", "--user", "alice", "--for", "1m")[1]
    assert user.startswith("alerts of user alice are silenced until 20")
    both = json.loads(ask("silences", "--json")[1])["items"]
    assert [(one["node"], one["user"]) for one in both] == [
        ("gpu-042", None),
        ("gpu-42", None),
        (None, "alice"),
    ]
    for one in both:
        assert ask("silence", "--remove", one["id"])[0] == 0


def test_an_ack_of_an_unknown_incident_is_status_4(ask):
    assert ask("ack", "nothing")[0] == 4
    assert ask("ack", "--outage", "nothing")[0] == 4


@pytest.mark.parametrize(
    ("length", "text"),
    [
        ("soon", "invalid duration 'soon': use 30m, 2h, 1h30m or 1d"),
        ("99d", "invalid duration '99d': must be 1s to 30d"),
    ],
)
def test_a_length_that_cannot_be_used_is_refused(capsys, length: str, text: str):
    with pytest.raises(SystemExit):
        main(["silence", "--job", "llama", "--for", length])
    assert text in capsys.readouterr().err


def test_a_tower_that_does_not_answer_is_told_with_what_to_do(capsys):
    assert main(["jobs", "--tower", "http://127.0.0.1:9"]) == 3
    assert "watchtower serve" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(tower, tmp_path, capsys):
    port = tower[0].rpartition(":")[2]
    assert main(["serve", "--port", port, "--data-dir", str(tmp_path)]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


def test_a_wrong_setting_stops_the_start(tmp_path, capsys):
    config = tmp_path / "w.toml"
    config.write_text("[detection]\nsettle_s = -1\n")
    assert main(["serve", "--config", str(config), "--data-dir", str(tmp_path)]) == 2
    assert "`settle_s` is -1, allowed is 0.1 to 600" in capsys.readouterr().err


def test_watching_shows_an_answer_once_while_nothing_changes(tower):
    command = module_command("watchtower", "incidents", "--watch", "--tower")
    with subprocess.Popen([*command, tower[0]], stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout.readline().startswith("No incidents. ")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=60) == 130
        assert watching.stdout.read() == ""


def test_sigterm_stops_the_tower_within_five_seconds(tmp_path):
    with running_tower(tmp_path) as running:
        post(running.url, "/ingest/v1/report", "report.json")
        started = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(timeout=30)
        assert time.monotonic() - started < 5.0
