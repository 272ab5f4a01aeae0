"""Lists of incidents and jobs over HTTP: filters, pages, and values that people should not send."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from tests.store.test_incident_filter import naming
from tests.tower.test_api import assert_problem, recorded
from watchtower.incidents.incident import Incident
from watchtower.incidents.incident_filter import Position
from watchtower.tower.acts import RequestRefusedError
from watchtower.tower.incident_events import Change, IncidentEvent
from watchtower.tower.stored_incidents import read_cursor, write_cursor
from watchtower.tower.tower import Tower
from watchtower.wire.verdict import Cause, Status

LIST = "/api/v1/incidents"


def save(tower: Tower, *incidents: Incident) -> None:
    for each in incidents:
        tower.store_writer.store.save_incident(each).result(20)


def a_history(count: int, **changes: object) -> list[Incident]:
    """Incidents of one job on two nodes, oldest first; two of them open at each moment."""
    closed = {"closed_at": 9e9, "status": Status.RECOVERED}
    return [
        naming(
            (f"gpu-{number % 2}", None),
            **{"id": f"01{number:03}", "opened_at": 1e9 + number // 2, **closed, **changes},
        )
        for number in range(count)
    ]


def ids(answer) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["items"]]


def test_an_incident_is_found_by_each_filter(client, tower):
    save(tower, naming(("gpu-042", None), id="01A", cause=Cause.GPU_FAULT), *a_history(3))
    for query in ("status=hung", "cause=gpu_fault", "node=gpu-042", "job=llama&status=hung"):
        assert ids(client.get(f"{LIST}?{query}")) == ["01A"]
    assert ids(client.get(f"{LIST}?since=2001-09-09T01:46:41Z")) == ["01002"]
    assert ids(client.get(f"{LIST}?since=2001-09-09T01:46:41")) == ["01002"]
    assert ids(client.get(f"{LIST}?user=bob")) == []


def test_pages_have_every_incident_once_while_others_open(client, tower):
    incidents = a_history(9)
    save(tower, *incidents)
    seen, query, number = list[str](), f"{LIST}?limit=2", 0
    while True:
        answer = client.get(query)
        seen += ids(answer)
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            break
        save(tower, naming(id=f"02{number:03}", opened_at=2e9 + number))
        query, number = f"{LIST}?limit=2&cursor={cursor}", number + 1
    assert seen == [one.id for one in reversed(incidents)]
    assert number == 4


def test_an_unsaved_state_replaces_the_stored_one_in_a_filtered_list(client, tower, monkeypatch):
    hung = naming(("a", None), id="01A")
    save(tower, hung, *a_history(2))
    recovered = replace(hung, status=Status.RECOVERED, closed_at=5.0)
    monkeypatch.setattr(tower.store_writer, "_write_incident", lambda ident: None)
    tower.store_writer.note(IncidentEvent(change=Change.CLOSED, incident=recovered))
    assert ids(client.get(f"{LIST}?status=hung")) == []
    assert ids(client.get(f"{LIST}?status=recovered&node=a")) == ["01A"]


@pytest.mark.parametrize("node", ["%", "_", "' OR 1=1 --", "\x00", "ü", "x" * 256, "\U0001f4a3"])
def test_a_name_with_the_characters_of_sql_finds_itself_only(client, tower, node):
    save(tower, naming((node, None), id="01A"), *a_history(2))
    assert ids(client.get(LIST, params={"node": node})) == ["01A"]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("status=broken", "`status` must be 'healthy'"),
        ("cause=moon", "`cause` must be"),
        ("domain=moon", "`domain` must be 'user_code' or"),
        ("since=0.5", "`since` must be a time such as"),
        ("node=" + "x" * 257, "`node` must have at most 256 characters"),
        ("since=yesterday", "`since` must be a time such as"),
        ("cursor=" + "x" * 129, "`cursor` must have at most 128 characters"),
        ("cursor=x", "`cursor` is not valid"),
        ("cursor=%00", "`cursor` is not valid"),
        ("limit=0", "`limit` must be 1 or more"),
    ],
)
def test_a_wrong_filter_is_refused_with_the_reason(client, query, text):
    assert_problem(client.get(f"{LIST}?{query}"), 422, text)


def test_a_cursor_is_its_position_and_a_changed_one_another_position_or_refused():
    position = Position(opened_at=1763777786.184, id="01KAPY3V7QH8M2T4W6Z9B1C5D7")
    cursor = write_cursor(position)
    assert read_cursor(cursor) == position
    for place in range(len(cursor)):
        for letter in "A0-_z":
            with suppress(RequestRefusedError):
                changed = read_cursor(cursor[:place] + letter + cursor[place + 1 :])
                assert isinstance(changed, Position)


def test_jobs_are_chosen_by_status(client):
    client.post("/ingest/v1/report", content=recorded("report.json"))
    assert len(client.get("/api/v1/jobs?status=healthy").json()["items"]) == 1
    assert client.get("/api/v1/jobs?status=hung").json()["items"] == []
    assert_problem(client.get("/api/v1/jobs?status=x"), 422, "`status` must be")
