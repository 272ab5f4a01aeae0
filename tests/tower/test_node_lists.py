"""Nodes over HTTP: their agents, what these cannot observe, and incidents, the worst first."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.alerts.notifying import opened
from tests.tower.test_api import recorded
from tests.tower.test_node_incidents import blaming


def report(client, node: str, **changes: object) -> None:
    message = json.loads(recorded("report.json", node=node, agent_id=node)) | changes
    assert client.post("/ingest/v1/report", json=message).is_success


def test_nodes_are_listed_with_their_agents_the_worst_first(client, tower):
    wall = tower.clock.wall()
    report(client, "a", limits={}, ranks=[])
    report(client, "b", limits={"spool": "the disk is full"}, ranks=[], release="")
    report(client, "c", limits={})
    for number, node in enumerate(["c", "gone", "gone"]):
        blamed = blaming(node, f"0{number}", opened_at=wall)
        client.portal.call(tower.node_incidents.note, opened(blamed))
    answer = client.get("/api/v1/nodes").json()
    counts = ("node", "incident_count", "named_count")
    assert [tuple(one[name] for name in counts) for one in answer["items"]] == [
        ("gone", 2, 2),
        ("c", 1, 1),
        ("b", 0, 0),
        ("a", 0, 0),
    ]
    gone, c, b, _ = answer["items"]
    assert (gone["has_agent"], gone["silent_for_s"], gone["is_silent"]) == (False, None, False)
    assert (c["release"], c["rank_count"], c["job_names"]) == ("0.1.0", 2, ["llama-70b"])
    assert (b["release"], b["limits"]) == ("", ["the disk is full"])
    assert 0 <= b["silent_for_s"] < 60
    assert (answer["connected"], answer["silent"], answer["rank_count"]) == (3, 0, 2)
    assert [one["node"] for one in client.get("/api/v1/nodes?limit=1").json()["items"]] == ["gone"]


def test_a_silent_agent_is_first_and_does_not_count_as_connected(client, tower):
    for node in ("a", "b"):
        report(client, node, limits={}, ranks=[])
    record = tower.fleet.nodes["b"]
    record.reporter = replace(record.reporter, silent_from=0.0)
    answer = client.get("/api/v1/nodes").json()
    assert [(one["node"], one["is_silent"]) for one in answer["items"]] == [
        ("b", True),
        ("a", False),
    ]
    assert (answer["connected"], answer["silent"]) == (1, 1)
    assert client.get("/api/v1/nodes", params={"limit": 0}).status_code == 422
