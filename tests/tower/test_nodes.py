"""Nodes: the incidents that count against them, their list, and what is not watched on them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.alerts.notifying import an_incident, closed, opened, updated
from tests.tower.simulator import Simulation
from tests.tower.test_api import recorded
from watchtower.api.metrics import MAX_NODES_SHOWN, TowerCollector
from watchtower.api.security import Refusals
from watchtower.incidents.incident import Identity, Incident
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.health import check_health
from watchtower.tower.node_incidents import DAY_S, MAX_BLAMES, MAX_NAMED, NodeIncidents
from watchtower.views.node import MAX_REASONS, MAX_SHOWN, count_unwatched, list_unwatched
from watchtower.wire.report import Beat, RankVitals, Report, Unwatched
from watchtower.wire.verdict import Domain

NOW = 100 * DAY_S


def blaming(node: str, ident: str = "01A", age_s: float = 0.0, **changes: object) -> Incident:
    identity = Identity(domain=Domain.NODE)
    values = {"only_node": node, "identity": identity, "opened_at": NOW - age_s} | changes
    incident = an_incident(ident)
    suspects = tuple(replace(each, node=node or "any") for each in incident.verdict.suspects)
    return replace(incident, verdict=replace(incident.verdict, suspects=suspects), **values)


def test_an_incident_counts_once_from_its_opening_and_in_its_windows():
    found = NodeIncidents(())
    for incident in (blaming("a"), blaming("a", "01B", 8 * DAY_S), blaming("b", "01C", 1.0)):
        for event in (opened(incident), updated(incident), closed(incident)):
            found.note(event)
    assert found.count(7 * DAY_S, NOW) == {"a": 1, "b": 1}
    assert found.count(30 * DAY_S, NOW) == {"a": 2, "b": 1}
    assert found.count(30 * DAY_S, NOW + 40 * DAY_S) == {}


def test_incidents_that_name_ranks_of_a_node_are_counted_whatever_hung_them():
    found = NodeIncidents(())
    user_code = Identity(domain=Domain.USER_CODE)
    for incident in (
        blaming("a"),
        blaming("a", "01B", identity=user_code),
        blaming("a", "01C", shadow=True),
        blaming("a", "01D", job="drill:a"),
        blaming("a", "01E", 31 * DAY_S),
    ):
        found.note(opened(incident))
    assert found.count_named(30 * DAY_S, NOW) == {"a": 2}
    assert found.count(30 * DAY_S, NOW) == {"a": 1}
    corrected = blaming("b", "01B", identity=user_code)
    found.note(updated(corrected))
    assert found.count_named(30 * DAY_S, NOW) == {"a": 1, "b": 1}


def test_many_incidents_that_name_ranks_displace_no_blame():
    found = NodeIncidents(())
    found.note(opened(blaming("a", "0", MAX_NAMED + 9.0)))
    for number in range(MAX_NAMED + 5):
        user_code = Identity(domain=Domain.USER_CODE)
        age_s = float(MAX_NAMED - number)
        found.note(opened(blaming("b", f"1{number:05}", age_s, identity=user_code)))
    assert found.count(30 * DAY_S, NOW) == {"a": 1}
    assert found.count_named(30 * DAY_S, NOW) == {"b": MAX_NAMED}


@pytest.mark.parametrize(
    "changes",
    [
        {"only_node": ""},
        {"shadow": True},
        {"job": "drill:a"},
        {"identity": Identity(domain=Domain.USER_CODE)},
        {"identity": Identity(domain=Domain.STORAGE)},
        {"identity": Identity(domain=Domain.UNKNOWN)},
    ],
)
def test_an_incident_that_does_not_blame_the_node_itself_does_not_count(changes):
    found = NodeIncidents(())
    found.note(opened(blaming("a", **changes)))
    assert found.count(7 * DAY_S, NOW) == {}


def test_a_corrected_verdict_takes_the_blame_back():
    found = NodeIncidents(())
    found.note(opened(blaming("a")))
    found.note(updated(blaming("")))
    assert found.count(7 * DAY_S, NOW) == {}


def test_the_number_of_incidents_is_bounded():
    found = NodeIncidents(())
    for number in range(MAX_BLAMES + 5):
        found.note(opened(blaming("a", f"{number:05}", float(MAX_BLAMES - number))))
    assert found.count(7 * DAY_S, NOW) == {"a": MAX_BLAMES}


def test_a_restarted_tower_counts_the_stored_incidents(store: SqliteStore):
    for incident in (
        blaming("a", closed_at=NOW),
        blaming("b", "01B", shadow=True),
        blaming("c", "01C", job="drill:c"),
        blaming("d", "01D", identity=Identity(domain=Domain.DATA)),
    ):
        store.save_incident(incident).result(20)
    startup = store.recall()
    found = NodeIncidents(startup.blames, startup.named)
    assert found.count(7 * DAY_S, NOW) == {"a": 1}
    assert found.count_named(7 * DAY_S, NOW) == {"a": 1, "d": 1}


def test_the_nodes_with_the_most_incidents_have_series(tell):
    async def story(sim) -> None:
        wall = sim.tower.clock.wall()
        for number in range(MAX_NODES_SHOWN + 9):
            incident = blaming(f"n{number}", f"{number:05}", opened_at=wall)
            sim.tower.node_incidents.note(opened(incident))
        sim.tower.node_incidents.note(opened(blaming("bad", "1", opened_at=wall)))
        sim.tower.node_incidents.note(opened(blaming("bad", "2", opened_at=wall)))
        families = TowerCollector(sim.tower, Refusals()).collect()
        (found,) = [one for one in families if one.name == "watchtower_node_incidents"]
        assert len(found.samples) == 2 * MAX_NODES_SHOWN
        assert [one.value for one in found.samples if one.labels["node"] == "bad"] == [2, 2]

    tell(story)


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


def take(sim: Simulation, node: str, *unwatched: Unwatched) -> None:
    """Report a rank of "mine", a second process with its rank, and what the agent skips."""
    beat = Beat(step=1, age_s=0.0)
    ranks = tuple(
        RankVitals(job=f"mine-{node}", rank=0, pid=pid, start_time=pid, owner="uid:1", beat=beat)
        for pid in (7, 8)
    )
    sim.tower.take_report(
        Report(
            version=1, node=node, agent_id=node, interval_s=1.0, ranks=ranks, unwatched=unwatched
        )
    )


def skipped(reason: str, count: int = 3, job: str = "", owner: str = "uid:2") -> Unwatched:
    return Unwatched(
        reason=reason, owner=owner, job=job, count=count, pids=(1,), text=f"{count} processes ..."
    )


def test_the_list_has_what_agents_skip_and_what_the_tower_skips(tell):
    async def story(sim: Simulation) -> None:
        take(sim, "n8", skipped("wrong_rank"), skipped("over_limit", 9, "mine-n8", "uid:1"))
        found = list_unwatched(sim.tower.moment())
        assert found.rank_count == 13
        assert [(each.node, each.job, each.reason, each.count) for each in found.items] == [
            ("n8", "mine-n8", "over_limit", 9),
            ("n8", "", "wrong_rank", 3),
            ("n8", "mine-n8", "second_claim", 1),
        ]
        assert found.items[2].pids == [8]
        of_job = list_unwatched(sim.tower.moment(), "mine-n8")
        assert [each.reason for each in of_job.items] == ["over_limit", "second_claim"]
        assert count_unwatched(sim.tower.moment()) == {
            "over_limit": 9,
            "wrong_rank": 3,
            "second_claim": 1,
        }
        assert check_health(sim.tower).unwatched == found

    tell(story)


def test_drills_are_listed_only_if_asked_for(tell):
    async def story(sim: Simulation) -> None:
        take(sim, "n8", skipped("over_limit", 9, "drill:x"))
        assert list_unwatched(sim.tower.moment()).rank_count == 1
        assert list_unwatched(sim.tower.moment(), drills=True).rank_count == 10
        assert count_unwatched(sim.tower.moment()) == {"second_claim": 1}

    tell(story)


def test_a_silent_agent_s_counts_are_not_current(tell):
    async def story(sim: Simulation) -> None:
        take(sim, "n8", skipped("wrong_rank"))
        sim.world.now += 60
        assert list_unwatched(sim.tower.moment()).items == []

    tell(story)


def test_lists_and_reasons_are_bounded_and_owners_take_turns(tell):
    async def story(sim: Simulation) -> None:
        for number in range(40):
            many = (skipped(f"r{'x' * n}", 100, f"j{n}", "uid:666") for n in range(31))
            take(sim, f"n{number}", *many, skipped("Odd Reason!"))
        found = list_unwatched(sim.tower.moment())
        assert len(found.items) == MAX_SHOWN
        assert found.rank_count == 40 * (3100 + 3 + 1)
        assert {each.owner for each in found.items} == {"uid:1", "uid:2", "uid:666"}
        counts = count_unwatched(sim.tower.moment())
        assert len(counts) <= MAX_REASONS + 1
        assert sum(counts.values()) == found.rank_count

    tell(story)
