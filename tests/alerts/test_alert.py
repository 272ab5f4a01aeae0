"""From incident events to alerts: what changes, and what never does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.alerts.notifying import LINKS, an_incident, closed, opened, updated
from watchtower.alerts.alert import is_wanted, make_alert
from watchtower.alerts.labels import NO_LINKS
from watchtower.alerts.message import AlertState
from watchtower.incidents.incident import Identity, Incident, IncidentKind
from watchtower.tower.incident_events import Change, IncidentEvent
from watchtower.wire.verdict import Aftermath, Domain, Status


def after(*events: IncidentEvent):
    alert = None
    for event in events:
        alert = make_alert(event, LINKS, alert)
    assert alert is not None
    return alert


def with_verdict(incident: Incident, **changes) -> Incident:
    return replace(incident, verdict=replace(incident.verdict, **changes))


def test_a_longer_stall_is_no_news():
    incident = an_incident()
    longer = with_verdict(incident, stalled_for_s=900.0)
    assert after(opened(incident), updated(longer)).version == 1


def test_a_change_that_no_text_shows_is_no_news():
    incident = an_incident()
    surer = with_verdict(incident, confidence=0.904)
    assert after(opened(incident), updated(surer)).version == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"confidence": 0.5},
        {"suspects": ()},
        {"waiting": "0-1"},
        {"domain": Domain.STORAGE},
        {"aftermath": (Aftermath(at="", ranks="0-7", text="ended by SIGTERM"),)},
    ],
)
def test_what_a_reader_must_know_is_a_new_version(changes):
    incident = an_incident()
    assert after(opened(incident), updated(with_verdict(incident, **changes))).version == 2


def test_labels_never_change():
    incident = an_incident()
    first = after(opened(incident))
    other = replace(
        with_verdict(incident, suspects=(), cause=None),
        identity=Identity(kind=IncidentKind.NEVER_STARTED, domain=Domain.GPU, user="mallory"),
    )
    last = after(opened(incident), updated(other), closed(other))
    assert last.labels == first.labels
    assert last.is_over


def test_facts_of_a_job_that_is_not_live_any_more_stay():
    incident = an_incident()
    unknown = IncidentEvent(change=Change.CLOSED, incident=closed(incident).incident)
    facts = after(opened(incident), unknown).facts
    assert (facts.ranks, facts.user, facts.checkpoint_step) == (8, "alice", 1200)
    assert (facts.dumps_in, facts.dumps_wanted) == (8, 8)
    assert facts.state is AlertState.RECOVERED
    assert after(opened(incident), unknown).sharer == "a"


def test_an_incident_that_is_closed_and_not_recovered_is_only_closed():
    ended = closed(an_incident(), Status.MONITORING_LOST)
    assert after(opened(an_incident()), ended).facts.state is AlertState.CLOSED


def test_the_end_of_a_job_is_news_although_its_incident_was_never_open():
    identity = Identity(kind=IncidentKind.ENDED, domain=Domain.NODE)
    incident = replace(an_incident(), identity=identity)
    done = replace(closed(incident).incident, status=Status.ENDED)
    alert = after(IncidentEvent(change=Change.OPENED, incident=done))
    assert alert.labels["alertname"] == "WatchtowerJobDied"
    assert alert.facts.state is AlertState.OPEN
    assert alert.is_over


@pytest.mark.parametrize("domain", Domain)
def test_the_end_of_a_job_has_an_alert_only_if_a_node_a_gpu_or_the_network_ended_it(domain: Domain):
    identity = Identity(kind=IncidentKind.ENDED, domain=domain)
    incident = replace(closed(an_incident()).incident, identity=identity)
    event = IncidentEvent(change=Change.OPENED, incident=incident)
    assert is_wanted(event) is (domain in (Domain.NODE, Domain.GPU, Domain.NETWORK))
    assert is_wanted(opened(with_domain(an_incident(), domain)))


def with_domain(incident: Incident, domain: Domain) -> Incident:
    return replace(incident, identity=Identity(domain=domain))


def test_the_message_has_at_most_three_lines_and_the_link():
    lines = after(opened(an_incident())).lines
    assert 1 <= len(lines) <= 3
    assert "https://tower/incidents/01A" in lines[-1]


def test_the_alert_of_a_drill_has_labels_that_no_rule_for_real_alerts_has():
    incident = an_incident()
    alert = make_alert(opened(incident), NO_LINKS, None, is_drill=True)
    assert (alert.labels["alertname"], alert.labels["severity"]) == ("WatchtowerDrill", "info")
    assert alert.labels["incident"] == incident.id
    assert alert.lines[0].startswith("[DRILL] [HUNG")
    end = make_alert(closed(incident), NO_LINKS, alert, is_drill=True)
    assert end.labels == alert.labels
    assert end.lines[0].startswith("[DRILL] [RECOVERED]")
