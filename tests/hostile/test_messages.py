"""Any bytes, any JSON: a tower in process answers with a message or a refusal, and stays well."""

from __future__ import annotations

import itertools
import json
import re
from argparse import Namespace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from benchmarks import junk
from tests.diagnosers import in_thread
from tests.properties import examples, is_thorough
from tests.tower.test_api import assert_problem, recorded
from watchtower.api.intake import RefusedError, decode
from watchtower.app import make_app
from watchtower.commands import asking
from watchtower.commands.options import FILTERS, FORMS
from watchtower.fleet import fleet as fleet_bounds
from watchtower.policy import Policy
from watchtower.store.retention import Retention
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower
from watchtower.wire.bounds import MAX_DUMPS_BYTES
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.report import Report
from watchtower.wire.verdict import Aftermath, Cause, Doubt, Evidence, Status, Suspect, Verdict
from watchtower.writing.verdict_text import render_markdown, render_slack, render_text

DECODERS = {
    "report.json": msgspec.json.Decoder(Report),
    "dumps.json": msgspec.json.Decoder(DumpBatch),
}
FEW = examples(40, suppress_health_check=list(HealthCheck))

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, -(2**63) - 1, 10**25, 1e308, -1e308, -1, 0]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(junk.HOSTILE_NAMES),
    st.just([]),
    st.just({}),
)


@pytest.fixture
def tower(tmp_path: Path):
    """One for each test: what a test wastes of it is refused to the next."""
    store = SqliteStore(tmp_path / "watchtower.db")
    yield Tower(Policy(startup_grace_s=0.1), store, store.recall(), Clock(), in_thread)
    store.close()


@pytest.fixture
def client(tower):
    with TestClient(make_app(tower)) as client:
        yield client


def assert_tower_is_well(client: TestClient, tower: Tower) -> None:
    client.portal.call(tower.tick)
    for path in ("/api/v1/jobs", "/api/v1/incidents", "/metrics", "/readyz"):
        assert client.get(path).status_code == 200, path
    assert tower.counters.failed_ticks == 0


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    return [path, *itertools.chain(*(places(item, (*path, key)) for key, item in inner))]


def put(message: dict, path: tuple, value: object) -> object:
    """A copy of a message with something else in one place."""
    if not path:
        return value
    copy = json.loads(json.dumps(message))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return copy


@pytest.mark.parametrize("name", DECODERS)
@given(body=st.binary(max_size=300))
@FEW
def test_any_bytes_are_a_message_or_are_refused(name, body):
    with pytest.raises(RefusedError) as raised:
        decode(body, DECODERS[name])
    assert raised.value.status in (400, 422)


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
@FEW
def test_a_message_cut_anywhere_is_refused(name, data):
    body = recorded(name)
    with pytest.raises(RefusedError, match=r"not JSON|not valid"):
        decode(body[: data.draw(st.integers(0, len(body) - 1))], DECODERS[name])


@pytest.mark.long
@pytest.mark.parametrize(("name", "path"), [("report.json", "report"), ("dumps.json", "dumps")])
@given(data=st.data())
@FEW
def test_one_odd_value_anywhere_leaves_the_tower_well(client, tower, name, path, data):
    message = json.loads(recorded(name))
    place = data.draw(st.sampled_from(places(message)))
    body = json.dumps(put(message, place, data.draw(ODD))).encode()
    response = client.post(f"/ingest/v1/{path}", content=body)
    assert response.status_code in (200, 400, 422)
    if response.status_code != 200:
        assert_problem(response, response.status_code)
    assert_tower_is_well(client, tower)


@pytest.mark.parametrize(
    ("path", "make_body", "status", "text"),
    [
        ("report", lambda: b'{"version": 1, "x": ' + b"[" * 100_000, 400, "not JSON"),
        ("report", lambda: b'{"version": NaN}', 400, "not JSON"),
        ("report", lambda: b'{"version": 1e400}', 422, "out of range"),
        ("report", lambda: b'{"version": ' + b"9" * 100_000 + b"}", 422, "version"),
        ("report", lambda: junk.report("n" * 10**6, []), 422, "`node` has 1000000 characters"),
        ("report", lambda: junk.report("n", [junk.vitals("j", 0, 1)] * 1025), 422, "1025 entries"),
        (
            "report",
            lambda: junk.report("n", [junk.vitals("j", 262_144, 1)]),
            422,
            "allowed is 0 to 262143",
        ),
        (
            "report",
            lambda: junk.report("n", [junk.vitals("j", 0, 10**18 * 10)]),
            422,
            "`pid` is out of",
        ),
        (
            "report",
            lambda: junk.report("n", [junk.vitals("j", 0, 1, world_size=1_000_000)]),
            422,
            "`world_size` is 1000000",
        ),
        (
            "report",
            lambda: junk.report("n", [junk.vitals("j", 0, 1, movement={"cpu_cores": 1e308})]),
            422,
            "`cpu_cores`",
        ),
        (
            "dumps",
            lambda: junk.dumps("j", 1, stacks=[junk.stack(1, 100_000)])[:MAX_DUMPS_BYTES],
            413,
            "16",
        ),
        (
            "dumps",
            lambda: junk.dumps("j", 1, stacks=[junk.stack(1, 50_000)]),
            422,
            "`frames` has 50000",
        ),
        (
            "dumps",
            lambda: junk.dumps("j", 1, stacks=[{"digest": "d" * 10**6, "frames": []}]),
            422,
            "`digest` has 1000000 characters",
        ),
    ],
    ids=lambda value: "body" if callable(value) else str(value),
)
def test_what_is_beyond_a_bound_is_refused_with_the_bound(client, path, make_body, status, text):
    body = make_body()
    if status == 413:
        body += b" " * (MAX_DUMPS_BYTES + 1 - len(body))
    assert_problem(client.post(f"/ingest/v1/{path}", content=body), status, text)


def test_a_thread_name_of_a_megabyte_is_refused(client):
    message = json.loads(recorded("dumps.json"))
    message["ranks"][0]["threads"][0]["name"] = "x" * 10**6
    response = client.post("/ingest/v1/dumps", json=message)
    assert_problem(response, 422, "`name` has 1000000 characters")


def test_a_compressed_body_is_refused(client):
    response = client.post(
        "/ingest/v1/report", content=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}
    )
    assert_problem(response, 415, "plain JSON")


@pytest.mark.parametrize("text", ["-1", "1_000", "x", "9" * 5000, "٣"])
def test_a_length_that_is_none_is_refused(client, text):
    headers = [(b"Content-Length", text.encode())]
    assert_problem(client.post("/ingest/v1/report", content=b"{}", headers=headers), 413)


def test_hostile_names_come_out_as_text_everywhere(client, tower):
    response = client.post("/ingest/v1/report", content=junk.report("rude", junk.hostile_jobs()))
    assert response.status_code == 200
    assert_tower_is_well(client, tower)
    assert "watchtower_jobs 7" not in client.get("/metrics").text.splitlines()
    jobs = {job["job"] for job in client.get("/api/v1/jobs").json()["items"]}
    assert set(junk.HOSTILE_NAMES) <= jobs


def a_verdict(text: str) -> Verdict:
    """A verdict with the same text wherever text may come from a process."""
    return Verdict(
        job=text,
        generation=1,
        status=Status.HUNG,
        cause=Cause.EXCEPTION,
        confidence=0.9,
        summary=f"rank 1 raised {text}",
        suspects=(Suspect(rank=1, node=text, cause=Cause.EXCEPTION, why=text, where=text),),
        evidence=(Evidence(source=text, text=text, ranks=text, weight=0.5),) * 5,
        missing_evidence=(text, text),
        doubts=(Doubt(kind=text, text=text),),
        aftermath=(Aftermath(at=text, ranks=text, text=text),),
        next_steps=(text, text),
        waiting=text,
    )


HOSTILE = st.one_of(
    st.sampled_from(junk.HOSTILE_NAMES),
    st.text(st.sampled_from("`*_~<>!@#&[]()|\\\n\r\t\x1b\u202e\u2028ab "), max_size=40),
    st.text(max_size=60),
)


@given(text=HOSTILE)
def test_no_text_reaches_a_terminal_as_anything_but_text(text):
    page = render_text(a_verdict(text))
    assert all(line.isprintable() for line in page.split("\n"))
    assert len(page.splitlines()) <= 15


@given(text=HOSTILE)
def test_no_text_becomes_a_mention_or_a_link_in_slack(text):
    page = render_slack(a_verdict(text))
    assert "<" not in page
    assert ">" not in page
    assert page.count("```") == 2
    assert all(line.isprintable() for line in page.split("\n"))
    headline, rest = page.split("\n", 1)
    assert (headline[0], headline[-1]) == ("*", "*")
    before, _, after = rest.split("```")
    for prose in (headline[1:-1], before, after):
        assert not re.search(r"[*~@]|\b_\B|\B_\b", prose_of(prose)), prose


@given(text=HOSTILE)
def test_no_text_becomes_markup_in_markdown(text):
    page = render_markdown(a_verdict(text))
    before, block, after = page.split("```")
    assert "`" not in block
    for prose in (before, after):
        plain = prose_of(prose)
        for character in "[]<>!|#~":
            assert plain.count(character) == plain.count(f"\\{character}"), (character, prose)


def prose_of(text: str) -> str:
    """The text outside code spans in CommonMark: a run of backticks closes at one of its length."""
    runs = [(m.start(), m.end()) for m in re.finditer("`+", text)]
    kept, at, skip = [], 0, 0
    for number, (start, end) in enumerate(runs):
        if number < skip:
            continue
        for other, (close, stop) in enumerate(runs[number + 1 :], number + 1):
            if stop - close == end - start:
                kept.append(text[at:start])
                at, skip = stop, other + 1
                break
    return "".join([*kept, text[at:]])


def test_a_node_that_invents_jobs_gets_a_share_of_them(client, tower, monkeypatch):
    monkeypatch.setattr(fleet_bounds, "MAX_JOBS_PER_NODE", 100)
    before = len(tower.fleet.jobs)
    for number in range(5):
        ranks = junk.many_jobs(number, 200)
        assert client.post("/ingest/v1/report", content=junk.report("liar", ranks)).is_success
    assert len(tower.fleet.jobs) - before == fleet_bounds.MAX_JOBS_PER_NODE
    assert sum(each.count for each in tower.fleet.nodes["liar"].unwatched) == 200
    response = client.post("/ingest/v1/report", content=recorded("report.json"))
    assert response.status_code == 200
    assert "llama-70b" in tower.fleet.jobs


def test_reports_without_end_from_nodes_that_do_not_exist_cost_little(client, tower):
    for number in range(500 if is_thorough() else 50):
        body = junk.report(f"ghost-{number}", [junk.vitals("ghosts", number, number)])
        assert client.post("/ingest/v1/report", content=body).status_code == 200
    assert_tower_is_well(client, tower)
    client.portal.call(tower.tick)
    assert tower.counters.last_tick_s < 1.0


@pytest.mark.long
def test_dumps_for_unknown_jobs_without_end_are_bounded_on_disk(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("watchtower.store.sql_store.PRUNE_AFTER_BYTES", 3_000_000)
    store = SqliteStore(tmp_path / "watchtower.db", Retention(dumps_mb=10))
    with TestClient(make_app(Tower(Policy(), store, store.recall(), Clock(), in_thread))) as client:
        for number in range(60):
            stacks = [junk.stack(1000 * number + n, 500) for n in range(4)]
            body = junk.dumps(f"nobody-{number}", number, stacks=stacks)
            assert client.post("/ingest/v1/dumps", content=body).status_code == 200
    store.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 20_000_000  # of 34 MB


def test_the_commands_show_a_terminal_nothing_but_text(client, capsys):
    client.post("/ingest/v1/report", content=junk.report("rude", junk.hostile_jobs()))
    jobs = client.get("/api/v1/jobs").json()["items"]
    filters = dict.fromkeys(FILTERS)
    args = Namespace(
        json=False, watch=False, limit=5, incident="i", drills=False, exit_code=False, **filters
    )
    evil = "\x1b[2J\x9b31m\u202e`x`\r\x07"
    frames = [{"function": evil, "file": evil, "line": 1}]

    class NoTower:
        """Answers as something that only looks like a tower."""

        jobs = staticmethod(lambda: jobs)
        list_jobs = staticmethod(lambda drills, status: {"items": jobs})
        unwatched = staticmethod(
            lambda job="", drills=False: {
                "items": [{"node": evil, "job": evil, "count": 1, "text": evil}],
                "rank_count": 1,
            }
        )
        nodes = staticmethod(
            lambda: {
                "items": [{"node": evil, "has_agent": True, "is_silent": False}],
                "connected": 1,
                "silent": 0,
                "rank_count": 0,
            }
        )
        list_incidents = staticmethod(lambda limit, **chosen: {"items": []})
        similar = staticmethod(
            lambda one, limit: {
                "items": [{"id": evil, "opened_at": evil, "job": evil, "why": evil}],
                "node_counts": [{"text": evil}],
            }
        )
        verdict = staticmethod(lambda job: {"job": evil, "incident": evil})
        verdict_text = staticmethod(lambda job: evil)
        incident = staticmethod(
            lambda one: {
                "id": evil,
                "opened_at": evil,
                "stacks": [{"ranks": evil, "frames": frames}],
            }
        )
        incident_text = verdict_text
        incidents = staticmethod(
            lambda job: [{"id": evil, "ack": {"at": evil, "by": evil, "note": evil}}]
        )
        silences = staticmethod(
            lambda: [{"job": evil, "node": None, "user": None, "until": evil, "reason": evil}]
        )

    for args.json in (False, True):
        asking.show_incident(NoTower, args)
    for form in FORMS:
        lists = Namespace(**vars(args), form=form)
        asking.show_jobs(NoTower, lists)
        asking.show_incidents(NoTower, lists)
    args.job = evil
    for args.json in (False, True):
        asking.show_verdict(NoTower, args)
    text = capsys.readouterr().out
    assert all(line.isprintable() for line in text.split("\n"))
