"""Earlier incidents with the same node, line or cause."""

from __future__ import annotations

import pytest

from tests.store.test_incident_filter import naming
from tests.tower.test_api import assert_problem
from tests.tower.test_incident_lists import save
from watchtower.commands.texts import write_earlier, write_feedback
from watchtower.tower.incident_events import Change
from watchtower.tower.recent_answers import MAX_ANSWERS, RecentAnswers
from watchtower.views.incident import MAX_COUNTED
from watchtower.wire.verdict import Cause
from watchtower.writing.times import DAY

NOW, LINE = 100 * DAY, "data.py:88 in __next__"


def similar(client, ident: str = "01Z", query: str = "") -> dict:
    answer = client.get(f"/api/v1/incidents/{ident}/similar{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def hung(tower):
    hung = naming(("gpu-042", LINE), id="01Z", opened_at=NOW, cause=Cause.DATALOADER_STALL)
    save(tower, hung)
    return hung


def test_earlier_incidents_are_listed_with_what_is_the_same(client, tower, hung):
    save(
        tower,
        naming(("gpu-042", LINE), id="01A", opened_at=NOW - DAY, cause=Cause.DATALOADER_STALL),
        naming(("gpu-042", "x.py:1"), id="01B", opened_at=NOW - 2 * DAY, cause=Cause.UNKNOWN),
        naming(("gpu-7", LINE), id="01C", opened_at=NOW - 3 * DAY, cause=Cause.UNKNOWN),
        naming(("gpu-8", None), id="01D", opened_at=NOW - 4 * DAY, cause=Cause.DATALOADER_STALL),
        naming(("gpu-8", None), id="01E", opened_at=NOW - 5 * DAY, cause=Cause.UNKNOWN),
        naming(("gpu-042", LINE), id="02A", opened_at=NOW + 1),
        naming(("gpu-042", LINE), id="01F", opened_at=NOW - 6 * DAY, job="drill:a"),
        naming(("gpu-042", None), id="01G", opened_at=NOW - 31 * DAY),
    )
    found = similar(client)
    assert [(one["id"], one["why"]) for one in found["items"]] == [
        ("01A", f"same node gpu-042, same line {LINE}, same cause"),
        ("01B", "same node gpu-042"),
        ("01C", f"same line {LINE}"),
        ("01D", "same cause"),
        ("01G", "same node gpu-042"),
    ]
    (counted,) = found["node_counts"]
    assert (counted["incident_count"], counted["same_line_count"]) == (2, 1)
    assert counted["text"] == (
        "gpu-042: 2 earlier incidents in 30 days, 1 at the same line, 1 with the same cause"
    )
    assert [one["id"] for one in similar(client, query="?limit=2")["items"]] == ["01A", "01B"]
    assert similar(client, "01F") == {"items": [], "node_counts": []}
    (text,) = write_earlier(similar(client, query="?limit=1"), NOW)
    assert text.splitlines()[1] == f"    {counted['text']}"
    assert f"1 days ago), job llama: same node gpu-042, same line {LINE}" in text or "h ago" in text


def test_a_new_state_of_an_incident_is_seen_at_once(client, tower, hung):
    assert similar(client)["items"] == []
    older = naming(("gpu-042", None), id="01A", opened_at=NOW - 1)
    client.portal.call(tower.feed.publish, Change.OPENED, older)
    assert [one["id"] for one in similar(client)["items"]] == ["01A"]


def test_a_node_with_many_incidents_is_not_counted_to_the_end(client, tower, hung):
    many = [
        naming(("gpu-042", None), id=f"01{number:03}", opened_at=NOW - number - 1)
        for number in range(MAX_COUNTED + 5)
    ]
    save(tower, *many)
    (counted,) = similar(client)["node_counts"]
    assert counted["incident_count"] == MAX_COUNTED
    assert counted["text"] == "gpu-042: at least 100 earlier incidents in 30 days"


def test_an_unknown_incident_and_a_wrong_limit_are_refused(client, hung):
    assert_problem(client.get("/api/v1/incidents/02/similar"), 404, "no incident")
    assert_problem(client.get("/api/v1/incidents/01Z/similar?limit=51"), 422, "`limit` must be 50")


def test_recent_answers_are_bounded_and_valid_for_one_version():
    recent = RecentAnswers[str]()
    recent.put("a", 1, "x")
    assert (recent.find("a", 1), recent.find("a", 2), recent.find("b", 1)) == ("x", None, None)
    for number in range(MAX_ANSWERS):
        recent.put(number, 1, "")
    assert recent.find("a", 1) is None


def test_a_persons_answer_is_one_line():
    given = {"right": False, "rank": 40, "cause": "network_wait", "by": "bob", "note": "a\ncable"}
    text = write_feedback(given | {"at": "2026-11-22T02:16:26Z"}, 1795313786.0)
    assert text.startswith("judged wrong 2026-11-22 02:16:26 UTC")
    assert text.endswith("by bob, correct is rank 40, network_wait: a?cable")
