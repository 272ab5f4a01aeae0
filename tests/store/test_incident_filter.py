"""Which incidents a list contains: the same from the store and from memory."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from itertools import product

import msgspec
import pytest

from tests.store.builders import an_incident
from watchtower.incidents.incident import Identity, Incident
from watchtower.incidents.incident_filter import (
    MAX_PLACES,
    IncidentFilter,
    Position,
    accepts,
    places_of,
    position_of,
)
from watchtower.store.incident_rows import as_sql
from watchtower.store.sqlite import SqliteStore
from watchtower.wire.verdict import Cause, Domain, Status, Suspect

NODES = ("gpu-1", "gpu-%", "gpu_1", "a'; DROP TABLE incidents; --", "ü\u2028")


def naming(*suspects: tuple[str, str | None], **changes: object) -> Incident:
    """An incident whose verdict names ranks on these nodes, at these lines."""
    named = tuple(
        Suspect(rank=rank, node=node, cause=Cause.UNKNOWN, why="", where=where)
        for rank, (node, where) in enumerate(suspects)
    )
    verdict = {key: changes.pop(key) for key in ("cause", "domain") if key in changes}
    incident = an_incident(**changes)
    verdict["job"] = incident.job
    return replace(incident, verdict=replace(incident.verdict, suspects=named, **verdict))


def some_incidents() -> list[Incident]:
    kinds = product((Status.HUNG, Status.RECOVERED), (Cause.GPU_FAULT, Cause.UNKNOWN), (*NODES, ""))
    found = []
    for number, (status, cause, node) in enumerate(kinds):
        changes = {
            "id": f"{number:02}",
            "job": ("llama", "drill:llama", "gpt")[number % 3],
            "status": status,
            "opened_at": 100.0 + number // 2,
            "cause": cause,
            "domain": (Domain.GPU, None)[number % 2],
            "identity": Identity(user=("alice", "")[number % 2]),
        }
        suspects = [(node, "data.py:88 in __next__"), (node, None)] if node else []
        found.append(naming(*suspects, **changes))
    return found


FILTERS = [
    IncidentFilter(),
    IncidentFilter(job="llama"),
    IncidentFilter(status=Status.HUNG),
    IncidentFilter(cause=Cause.GPU_FAULT),
    IncidentFilter(domain=Domain.GPU, drills=False),
    IncidentFilter(user="alice"),
    IncidentFilter(where="data.py:88 in __next__"),
    IncidentFilter(where="data.py:88"),
    IncidentFilter(since=105.0, drills=True),
    IncidentFilter(before=Position(opened_at=105.0, id="11")),
    *(IncidentFilter(node=node, status=Status.HUNG) for node in (*NODES, "gpu-", "%", "x" * 256)),
]


@pytest.mark.parametrize("chosen", FILTERS, ids=repr)
def test_store_and_memory_agree_on_what_a_list_contains(make_store, chosen):
    store, incidents = make_store(), some_incidents()
    for each in incidents:
        store.save_incident(each).result()
    expected = sorted((i for i in incidents if accepts(chosen, i)), key=position_of, reverse=True)
    assert store.incidents(chosen).result() == expected
    store.close()


def test_a_corrected_verdict_is_found_by_its_new_node_only(make_store):
    store = make_store()
    store.save_incident(naming(("a", None), cause=Cause.GPU_FAULT)).result()
    store.save_incident(naming(("b", None), ("b", None), cause=Cause.NODE_LOST)).result()
    for chosen, count in (
        (IncidentFilter(node="a"), 0),
        (IncidentFilter(cause=Cause.GPU_FAULT), 0),
        (IncidentFilter(node="b"), 1),
        (IncidentFilter(cause=Cause.NODE_LOST), 1),
    ):
        assert len(store.incidents(chosen).result()) == count
    store.close()


def test_the_places_of_an_incident_are_bounded():
    many = naming(*((f"n{number}", None) for number in range(MAX_PLACES + 5)))
    assert len(places_of(many)) == MAX_PLACES


@pytest.mark.parametrize("chosen", FILTERS[1:6] + FILTERS[8:], ids=repr)
def test_every_filter_uses_an_index(tmp_path, chosen):
    path = tmp_path / "watchtower.db"
    SqliteStore(path).close()
    where, values = as_sql(replace(chosen, drills=None))
    query = f"SELECT id FROM incidents {where} ORDER BY opened_at DESC, id DESC LIMIT 100"
    with contextlib.closing(sqlite3.connect(path)) as db:
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    assert not [step for step in plan if step in ("SCAN incidents", "SCAN suspects")], plan


def test_a_value_that_a_release_did_not_know_breaks_nothing(tmp_path):
    store = SqliteStore(tmp_path / "watchtower.db")
    incident = an_incident()
    verdict = msgspec.to_builtins(incident.verdict) | {"cause": "moon"}
    store.save_incident(incident).result()
    store._thread.submit(
        lambda: store._db.execute("UPDATE incidents SET verdict = ?", (str(verdict),))
    ).result()
    assert [one.id for one in store.incidents().result()] == [incident.id]
    store.close()
