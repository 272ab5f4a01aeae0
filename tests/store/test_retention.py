"""Data over the limits is deleted: the oldest first, in batches, never of an open incident."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import pytest

from tests.store.builders import EVIDENCE, a_batch, an_incident
from watchtower.incidents.incident import Delivery, Silence, SilenceKind
from watchtower.jobs.attempt import PastAttempt
from watchtower.jobs.pace import MAX_PAUSES, Pause
from watchtower.store.retention import BITE, DAY_S, Retention, prune
from watchtower.store.sql_store import SqlStore
from watchtower.store.values import AlertRow, AttemptRow, PauseRow, SeriesRow
from watchtower.wire.stacks import Frame, make_stack

NOW = 1000 * DAY_S
MB = 1_000_000


@pytest.fixture
def keep(make_store):
    """Open a store that keeps so much."""

    def open_store(**limits: float) -> SqlStore:
        store = make_store()
        store._keep = replace_unchecked(Retention(), limits)
        return store

    return open_store


def replace_unchecked(keep: Retention, limits: dict[str, float]) -> Retention:
    """Limits below what a setting may be, so that little is a lot."""
    keep = replace(keep)
    for name, value in limits.items():
        object.__setattr__(keep, name, value)
    return keep


def prune_all(store: SqlStore) -> int:
    """Prune until nothing is left to do; how many bites that took."""

    def bite() -> bool:
        with store._transaction() as db:
            return prune(db, store._keep, NOW)

    bites = 0
    while store._thread.submit(bite).result():
        bites += 1
    return bites


def ids(store: SqlStore, table: str, column: str = "id") -> list[str]:
    query = f"SELECT {column} FROM {table} ORDER BY {column}"
    return [value for (value,) in store.read(lambda db: db.execute(query).fetchall()).result()]


def a_large_batch(ident: str, size: int, job: str = "llama"):
    name = random.Random(ident).randbytes  # does not get much smaller when packed
    number = size // 1060
    frames = tuple(Frame(function=name(500).hex(), file="a.py", line=n) for n in range(number))
    return a_batch(ident, job=job, stacks=(make_stack(frames),))


def closed(number: int, **changes):
    ident, at = f"{number:04}", NOW - 100_000 + number
    return an_incident(id=ident, opened_at=at, updated_at=at, closed_at=at + 1, **changes)


def test_incidents_are_bounded_in_number_and_open_ones_stay(keep):
    store = keep(incidents=5)
    store.save_incident(an_incident(id="0000", opened_at=1.0)).result()
    for number in range(1, 80):
        store.save_incident(closed(number)).result()
    assert prune_all(store) >= 75 / BITE
    assert ids(store, "incidents") == ["0000", "0076", "0077", "0078", "0079"]


def test_incidents_are_bounded_in_age(keep):
    store = keep(incident_days=2)
    for days in (1, 3, 5):
        at = NOW - days * DAY_S
        store.save_incident(an_incident(id=f"{days}", opened_at=at, closed_at=at)).result()
    store.save_incident(an_incident(id="open", opened_at=1.0)).result()
    prune_all(store)
    assert ids(store, "incidents") == ["1", "open"]


def test_old_evidence_goes_before_its_verdict_does(keep):
    store = keep(evidence_mb=1000 / MB)
    for number in range(8):
        store.save_incident(closed(number, evidence=EVIDENCE)).result()
    prune_all(store)
    kept = [store.incident(f"{number:04}").result().evidence is not None for number in range(8)]
    assert kept == sorted(kept)
    assert 0 < sum(kept) < 8
    assert store.incident("0000").result().verdict.summary == "no idea"


def test_summaries_outlive_evidence_and_have_a_limit_of_their_own(keep):
    summary = b"c" * 100
    store = keep(evidence_mb=1.5 * len(EVIDENCE) / MB, summaries_mb=450 / MB)
    for number in range(8):
        store.save_incident(closed(number, evidence=EVIDENCE, summary=summary)).result()
    still_open = replace(closed(8, evidence=EVIDENCE, summary=summary), closed_at=None)
    store.save_incident(still_open).result()
    prune_all(store)
    assert ids(store, "summaries", "incident") == ["0005", "0006", "0007", "0008"]
    assert store.incident("0005").result().evidence is None


def test_a_deleted_incident_leaves_no_summary(keep):
    store = keep(incident_days=2)
    at = NOW - 3 * DAY_S
    old = an_incident(opened_at=at, closed_at=at, evidence=EVIDENCE, summary=b"c")
    store.save_incident(old).result()
    prune_all(store)
    assert store.summary(old.id).result() is None


def test_dumps_are_bounded_altogether_by_job_and_by_age(keep):
    store = keep(dumps_mb=0.1, dumps_per_job_mb=0.05, dump_days=1)
    store.save_dumps("llama", a_large_batch("0-old", 2000), NOW - 2 * DAY_S).result()
    for number in range(100):
        job = "loud" if number % 10 else "calm"
        store.save_dumps(job, a_large_batch(f"{number:03}", 2120, job), NOW - 200 + number).result()
    prune_all(store)
    kept = ids(store, "dumps")
    assert "0-old" not in kept
    assert [ident for ident in kept if int(ident) % 10 == 0][-3:] == ["070", "080", "090"]
    assert sum(1 for ident in kept if int(ident) % 10) <= 50 / 2
    assert kept[-1] == "099"


def test_many_incidents_of_one_owner_push_out_none_of_another_one(keep):
    store = keep(incidents=6)
    for number in range(100):
        store.save_incident(closed(number, sharer="uid:1" if number < 3 else "uid:2"))
    for number in range(100, 103):
        still_open = replace(closed(number, sharer="uid:3"), closed_at=None)
        store.save_incident(still_open)
    prune_all(store)
    assert ids(store, "incidents") == ["0001", "0002", "0099", "0100", "0101", "0102"]


def test_much_evidence_of_one_owner_pushes_out_none_of_another_one(keep):
    store = keep(evidence_mb=4.5 * len(EVIDENCE) / MB)
    for number in range(20):
        sharer = "uid:1" if number < 2 else "uid:2"
        store.save_incident(closed(number, evidence=EVIDENCE, sharer=sharer)).result()
    prune_all(store)
    found = [store.incident(f"{number:04}").result() for number in range(20)]
    assert [one.id for one in found if one.evidence] == ["0000", "0001", "0018", "0019"]


def test_many_dumps_of_one_owner_push_out_none_of_another_one(keep):
    store = keep(dumps_mb=0.1)
    for number in range(100):
        job, sharer = ("calm", "uid:1") if number < 5 else (f"loud-{number}", "uid:2")
        batch = a_large_batch(f"{number:03}", 4240, job)
        store.save_dumps(job, batch, NOW - 200 + number, sharer).result()
    prune_all(store)
    assert ids(store, "dumps")[:5] == ["000", "001", "002", "003", "004"]
    assert ids(store, "dumps")[-1] == "099"


def a_series_row(incident: str, size: int = 1000, sharer: str = "alice", at: float = NOW):
    body = b"x" * size
    return SeriesRow(incident=incident, node="n0", sharer=sharer, taken_at=at, body=body)


def test_many_series_of_one_owner_push_out_none_of_another_one(keep):
    store = keep(series_mb=0.02)
    store.save_series(a_series_row("calm", at=NOW - 999, sharer="bob")).result()
    for number in range(60):
        store.save_series(a_series_row(f"{number:02}", at=NOW - 200 + number)).result()
    prune_all(store)
    kept = ids(store, "series", "incident")
    assert kept[-1] == "calm"
    assert kept[-2] == "59"
    assert 10 <= len(kept) <= 20


def test_series_are_deleted_with_their_incident_and_when_they_have_none(keep):
    store = keep(incident_days=2)
    for days in (1, 5):
        at = NOW - days * DAY_S
        store.save_incident(an_incident(id=f"{days}", opened_at=at, closed_at=at)).result()
        store.save_series(a_series_row(f"{days}")).result()
    store.save_series(a_series_row("never stored", at=NOW - 5 * DAY_S)).result()
    prune_all(store)
    assert ids(store, "series", "incident") == ["1"]


def test_jobs_are_bounded_with_their_pauses(keep):
    store = keep(jobs=3, job_days=30)
    for number in range(40):
        seen_at = NOW - 40 * DAY_S if number == 39 else NOW - 100 + number
        job, pause = f"j{number:02}", Pause(phase="", frame_class="", length_s=9.0)
        past = PastAttempt(number=1)
        store.save_rows([AttemptRow(job, past, seen_at), PauseRow(job, pause)]).result()
    prune_all(store)
    assert ids(store, "attempts", "job") == ["j36", "j37", "j38"]
    assert ids(store, "pauses", "job") == ["j36", "j37", "j38"]


def test_many_jobs_of_one_owner_push_out_no_pauses_of_another_one(keep):
    store = keep(jobs=5)
    for number in range(100):
        owner = "uid:1" if number < 2 else "uid:2"
        job, pause = f"j{number:02}", Pause(phase="", frame_class="", length_s=9.0)
        past = PastAttempt(number=1, owner=owner)
        store.save_rows([AttemptRow(job, past, NOW - 100 + number), PauseRow(job, pause)])
    prune_all(store)
    assert ids(store, "attempts", "job") == ["j00", "j01", "j97", "j98", "j99"]
    assert ids(store, "pauses", "job") == ["j00", "j01", "j97", "j98", "j99"]


def test_the_longest_pauses_of_a_job_stay(keep):
    store = keep()
    for number in range(MAX_PAUSES + 50):
        pause = Pause(phase=f"step-{number}", frame_class="", length_s=float(number))
        store.save_rows([PauseRow("llama", pause)]).result()
    prune_all(store)
    lengths = ids(store, "pauses", "length_s")
    assert (len(lengths), lengths[0]) == (MAX_PAUSES, 50.0)


def test_past_silences_go(keep):
    store = keep()
    store.save_silence(
        Silence(id="1", kind=SilenceKind.NODE, name="past", since=1.0, until=NOW - 1)
    ).result()
    store.save_silence(
        Silence(id="2", kind=SilenceKind.JOB, name="present", since=1.0, until=NOW + 1)
    ).result()
    prune_all(store)
    assert [silence.name for silence in store.recall().silences] == ["present"]


def test_pruning_starts_by_itself_when_much_is_written(keep):
    store = keep(dumps_mb=1.0)
    for number in range(40):
        saving = store.save_dumps("llama", a_large_batch(f"{number:02}", 500_000), NOW + number)
    saving.result()
    store.close()
    assert len(ids(keep(), "dumps")) < 40


def test_a_dump_is_acknowledged_while_a_year_is_removed(keep):
    store = keep()
    for number in range(20 * BITE):
        store.save_incident(closed(number))
    store.probe().result()
    store._keep = replace_unchecked(Retention(), {"incidents": 0})
    store.prune(NOW)
    store.save_dumps("llama", a_batch("b1"), NOW).result()
    assert len(ids(store, "incidents")) > 10 * BITE


@pytest.mark.parametrize("item", fields(Retention), ids=lambda item: item.name)
def test_a_limit_out_of_its_range_is_named(item):
    with pytest.raises(ValueError, match=f"`{item.name}` is -1, allowed is"):
        Retention(**{item.name: -1})


def row(delivered: int, at: float, destination: str = "slack") -> AlertRow:
    return AlertRow(
        destination=destination,
        incident="0001",
        alert="{}",
        version=2,
        delivered=delivered,
        receipt="",
        updated_at=at,
    )


def test_the_first_delivery_to_each_destination_stays_after_the_end_of_the_alert(make_store):
    store = make_store()
    store.save_alert(row(0, 10.0)).result()
    assert store.deliveries("0001").result() == ()
    store.save_alert(row(1, 11.0)).result()
    store.save_alert(row(2, 30.0)).result()
    store.remove_alert("slack", "0001", 40.0).result()
    store.remove_alert("pagerduty", "0001", 41.0).result()
    store.remove_alert("webhook", "0001").result()
    assert store.deliveries("0001").result() == (
        Delivery(destination="slack", at=11.0),
        Delivery(destination="pagerduty", at=41.0),
    )
    store.close()


def test_deliveries_go_with_their_incident(make_store):
    store = make_store(Retention(incidents=100))
    for number in range(102):
        store.save_incident(closed(number)).result()
    store.remove_alert("slack", "0001", 40.0).result()
    store.remove_alert("slack", "0101", 40.0).result()
    prune_all(store)
    assert store.incident("0001").result() is None
    assert store.deliveries("0001").result() == ()
    assert store.deliveries("0101").result()
    store.close()
