"""What every store does: `watchtower/store/protocol.py` in tests. A new store runs them all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.store.builders import EVIDENCE, a_batch, a_case, an_incident
from watchtower.incidents.incident import Ack, Delivery, Feedback, Silence, SilenceKind
from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.jobs.attempt import PastAttempt
from watchtower.jobs.pace import Pause
from watchtower.jobs.ranks import ProcessKey
from watchtower.store.protocol import Store
from watchtower.store.values import AlertRow, AttemptRow, PauseRow, SeriesRow, read_case
from watchtower.wire.verdict import Cause, Status


@pytest.fixture
def store(open_store) -> Store:
    return open_store()


def test_an_incident_comes_back_as_it_was_saved(store):
    incident = an_incident(evidence=EVIDENCE)
    store.save_incident(incident).result()
    assert store.incident("01A").result() == incident
    assert store.incident("01B").result() is None


def test_a_summary_changes_with_its_case_only(store):
    store.save_incident(an_incident(evidence=EVIDENCE, summary=b"one")).result()
    store.save_incident(an_incident(status=Status.RECOVERED, summary=b"two")).result()
    assert store.summary("01A").result() == b"one"
    store.save_incident(an_incident(evidence=EVIDENCE, summary=b"three")).result()
    assert store.summary("01A").result() == b"three"
    store.save_incident(an_incident(evidence=EVIDENCE)).result()
    assert store.summary("01A").result() is None, "it is of an earlier case"


def test_an_update_without_a_case_keeps_the_stored_one(store):
    store.save_incident(an_incident(evidence=EVIDENCE)).result()
    store.save_incident(an_incident(status=Status.RECOVERED, closed_at=130.0)).result()
    stored = store.incident("01A").result()
    assert stored.status is Status.RECOVERED
    assert stored.closed_at == 130.0
    assert read_case(stored) == a_case()


def test_incidents_are_listed_newest_first_and_by_job(store):
    for number, job in enumerate(["llama", "gpt", "llama"]):
        store.save_incident(an_incident(id=f"0{number}", job=job, opened_at=number)).result()
    assert [i.id for i in store.incidents().result()] == ["02", "01", "00"]
    assert [i.id for i in store.incidents(IncidentFilter(job="llama")).result()] == ["02", "00"]
    assert [i.id for i in store.incidents(limit=1).result()] == ["02"]


def test_dumps_of_two_owners_jobs_of_one_name_are_kept_apart(store):
    store.save_dumps("llama", a_batch("b1", owner="uid:1"), 5.0).result()
    store.save_dumps("llama@uid:2", a_batch("b2", owner="uid:2"), 5.0).result()
    kept = {job: store.dumps(job, 0.0).result() for job in ("llama", "llama@uid:2")}
    assert {job: [row.sent.batch.id for row in rows] for job, rows in kept.items()} == {
        "llama": ["b1"],
        "llama@uid:2": ["b2"],
    }


def test_what_was_saved_is_there_after_opening_again(open_store):
    store = open_store()
    store.save_rows(
        [PauseRow("llama", Pause(phase="", frame_class="user", length_s=20.0))]
    ).result()
    store.save_rows(
        [PauseRow("llama", Pause(phase="", frame_class="user", length_s=30.0))]
    ).result()
    past = PastAttempt(
        number=3,
        typical_step_s=1.5,
        processes=frozenset({ProcessKey("n0", 4711, 99)}),
        owner="uid:1000",
    )
    store.save_rows([AttemptRow("llama", past, 5.0)]).result()
    store.save_incident(an_incident()).result()
    store.save_incident(an_incident(id="02", closed_at=1.0)).result()
    store.close()
    startup = open_store().recall()
    assert startup.pauses == {"llama": (Pause(phase="", frame_class="user", length_s=30.0),)}
    assert startup.attempts == {"llama": past}
    assert [incident.id for incident in startup.incidents] == ["01A"]


def test_an_acknowledgement_is_of_a_stored_incident_and_stays_with_its_updates(store):
    assert store.save_ack("01A", Ack(at=5.0, by="ada")).result() is False
    store.save_incident(an_incident()).result()
    assert store.save_ack("01A", Ack(at=5.0, by="ada", note="I look")).result() is True
    store.save_incident(an_incident(status=Status.RECOVERED, closed_at=130.0)).result()
    assert store.incident("01A").result().ack == Ack(at=5.0, by="ada", note="I look")


def test_incidents_are_found_by_the_first_characters_of_their_ids(store):
    for ident in ("01A", "01B", "02A"):
        store.save_incident(an_incident(id=ident)).result()
    assert store.incident_ids("01", 10).result() == [("01A", "llama"), ("01B", "llama")]
    assert store.incident_ids("01", 1).result() == [("01A", "llama")]
    assert store.incident_ids("03", 10).result() == []


def test_dumps_are_read_newest_first_between_two_times_and_page_by_page(store):
    for number in range(70):
        store.save_dumps("llama", a_batch(f"b{number:03}"), float(number)).result()
    rows, last = [], None
    while page := store.dumps("llama", 0.5, 68.5, last).result():
        rows, last = rows + page, page[-1]
    assert [row.taken_at for row in rows] == [float(at) for at in range(68, 0, -1)]
    assert store.dumps("llama", 200.0).result() == []


def test_a_batch_that_is_stored_already_does_not_change(store):
    store.save_dumps("llama", a_batch("b1", round=1), 5.0).result()
    store.save_dumps("llama", a_batch("b1", round=2), 6.0).result()
    (row,) = store.dumps("llama", 0.0).result()
    assert (row.taken_at, row.sent.batch.round) == (5.0, 1)


def test_the_series_of_a_launch_are_replaced_and_listed_by_node(store):
    def row(node: str, taken_at: float) -> SeriesRow:
        return SeriesRow(incident="01A", node=node, sharer="ann", taken_at=taken_at, body=b"{}")

    for one in (row("n1", 1.0), row("n0", 2.0), row("n1", 3.0)):
        store.save_series(one).result()
    assert store.series("01A").result() == [row("n0", 2.0), row("n1", 3.0)]
    assert store.series("01B").result() == []


def test_people_s_silences_and_answers_are_recalled_and_the_newest_counts(open_store):
    store = open_store()
    silence = Silence(id="S1", kind=SilenceKind.NODE, name="n1", since=1.0, until=1e12, by="ada")
    gone = replace(silence, id="S2", name="n2")
    answer = Feedback(
        incident="01A",
        job="llama",
        at=5.0,
        right=False,
        verdict_cause=Cause.UNKNOWN,
        confidence=0.4,
    )
    store.save_incident(an_incident()).result()
    for one in (silence, replace(silence, reason="repair"), gone):
        store.save_silence(one).result()
    store.remove_silence("S2").result()
    for given in (answer, replace(answer, at=6.0, right=True)):
        store.save_feedback(given).result()
    store.close()
    startup = open_store().recall()
    assert startup.silences == (replace(silence, reason="repair"),)
    assert startup.feedback == (replace(answer, at=6.0, right=True),)


def test_an_alert_is_recalled_until_its_end_was_delivered(open_store):
    store = open_store()
    row = AlertRow(
        destination="slack",
        incident="01A",
        alert="{}",
        version=2,
        delivered=1,
        receipt="r1",
        updated_at=9.0,
    )
    store.save_incident(an_incident()).result()
    for destination in ("slack", "pagerduty"):
        store.save_alert(replace(row, destination=destination)).result()
    store.remove_alert("pagerduty", "01A", 12.0).result()
    delivered = {Delivery(destination="slack", at=9.0), Delivery(destination="pagerduty", at=9.0)}
    assert set(store.deliveries("01A").result()) == delivered
    store.close()
    assert open_store().recall().alerts == (row,)


def test_all_pauses_fade(open_store):
    store = open_store()
    for job in ("llama", "gpt"):
        pause = Pause(phase="eval", frame_class="user", length_s=20.0)
        store.save_rows([PauseRow(job, pause)]).result()
    store.fade_pauses(0.5).result()
    store.close()
    pauses = open_store().recall().pauses
    assert {job: [one.length_s for one in known] for job, known in pauses.items()} == {
        "llama": [10.0],
        "gpt": [10.0],
    }


def test_checks_and_deletions_change_nothing_that_is_within_the_limits(store):
    store.save_incident(an_incident()).result()
    for done in (store.probe(), store.check(), store.prune(100.0)):
        done.result()
    assert store.incident("01A").result() == an_incident()
