"""Which incidents count against a node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.notifying import an_incident, closed, opened, updated
from watchtower.api.metrics import MAX_NODES_SHOWN, TowerCollector
from watchtower.api.security import Refusals
from watchtower.incidents.incident import Identity, Incident
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.node_incidents import DAY_S, MAX_BLAMES, MAX_NAMED, NodeIncidents
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


def test_a_restarted_tower_counts_the_stored_incidents(tmp_path: Path):
    store = SqliteStore(tmp_path / "watchtower.db")
    for incident in (
        blaming("a", closed_at=NOW),
        blaming("b", "01B", shadow=True),
        blaming("c", "01C", job="drill:c"),
        blaming("d", "01D", identity=Identity(domain=Domain.DATA)),
    ):
        store.save_incident(incident).result(20)
    startup = store.recall()
    store.close()
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
