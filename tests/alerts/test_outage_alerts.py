"""One message for all incidents of an outage, and no incident that is lost in it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from tests.alerts.notifying import LINKS, Run, an_incident, closed, opened, updated
from tests.alerts.receivers import Receiver, serving
from watchtower.alerts import notifier as module
from watchtower.alerts.alert import Alert, make_alert
from watchtower.alerts.destinations.alertmanager import Alertmanager
from watchtower.alerts.destinations.pagerduty import PagerDuty
from watchtower.alerts.destinations.slack import SlackBot
from watchtower.alerts.destinations.webhook import Webhook, make_payload
from watchtower.alerts.labels import NO_LINKS
from watchtower.alerts.message import MAX_LINE, AlertState
from watchtower.alerts.notifier import AlertNotifier
from watchtower.alerts.outage_alert import OutageAlerts, join_alert
from watchtower.alerts.outbox import Outbox
from watchtower.incidents.incident import Ack, Identity, Incident
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.incident_events import Change, IncidentEvent
from watchtower.wire.verdict import Domain, SharedCause, Status

MOUNT = SharedCause(kind="mount", name="nfs1:/data")


def on_mount(ident: str, job: str = "", outage: str = "01A", rank: int = 3) -> Incident:
    incident = an_incident(ident, job or f"job-{ident}", rank)
    return replace(
        incident,
        verdict=replace(incident.verdict, shared_cause=MOUNT, domain=Domain.STORAGE),
        identity=Identity(domain=Domain.STORAGE, outage=outage),
    )


def acked(incident: Incident) -> IncidentEvent:
    incident = replace(incident, ack=Ack(at=1.0, by="ann"))
    return IncidentEvent(change=Change.ACKNOWLEDGED, incident=incident)


def identities(payload: dict) -> list[tuple[str, str]]:
    """Incident and status of each alert of a request."""
    return [(one["labels"]["incident"], one["status"]) for one in payload["alerts"]]


def summary(payload: dict) -> str:
    return payload["commonAnnotations"]["summary"]


def test_three_incidents_of_one_outage_are_one_message(tell, receiver, monkeypatch):
    monkeypatch.setattr(module, "GATHER_S", 1.0)

    async def story(run: Run) -> None:
        incidents = [on_mount(ident) for ident in ("01A", "01B", "01C")]
        for incident in incidents:
            run.notifier.note(opened(incident))
            await asyncio.sleep(0)
        (first,) = await run.wait_for(1)
        assert identities(first) == [("01A", "firing"), ("01B", "firing"), ("01C", "firing")]
        assert first["commonAnnotations"]["description"].split("\n") == [
            "[OUTAGE] mount nfs1:/data: 3 jobs are hung, 24 ranks",
            "Call the storage team. job-01A, job-01B, job-01C hang on it.",
            "Acknowledge: watchtower ack --outage 01A | Details: watchtower outages",
        ]
        for incident in incidents:
            run.notifier.note(closed(incident))
        second = (await run.wait_for(2))[1]
        assert (second["status"], second["groupKey"]) == ("resolved", first["groupKey"])
        assert {status for _, status in identities(second)} == {"resolved"}
        assert (
            summary(second) == "[OUTAGE OVER] mount nfs1:/data: all 3 jobs make steps again,"
            " 24 ranks"
        )
        await run.settle()
        assert run.stored == {}
        assert len(set(receiver.keys)) == 2

    tell(story)


def test_incidents_that_join_end_or_are_corrected_edit_the_message(tell, receiver):
    async def story(run: Run) -> None:
        first = on_mount("01A")
        run.notifier.note(opened(first))
        alone = (await run.wait_for(1))[0]
        assert alone["groupKey"] == "watchtower:01A"
        assert "rank 3 on gpu-1" in summary(alone)
        run.notifier.note(opened(on_mount("01B")))
        joined = (await run.wait_for(2))[1]
        assert joined["groupKey"] == "watchtower:01A"
        assert identities(joined) == [("01A", "firing"), ("01B", "firing")]
        assert joined["alerts"][0]["labels"] == alone["alerts"][0]["labels"]
        run.notifier.note(updated(on_mount("01B", rank=5)))
        corrected = (await run.wait_for(3))[2]
        assert "rank 5" in corrected["alerts"][1]["annotations"]["summary"]
        run.notifier.note(closed(first))
        fewer = (await run.wait_for(4))[3]
        assert summary(fewer) == "[OUTAGE] mount nfs1:/data: 1 of 2 jobs is still hung, 8 ranks"
        assert identities(fewer) == [("01A", "resolved"), ("01B", "firing")]
        run.notifier.note(closed(on_mount("01B")))
        await run.wait_for(5)
        assert receiver.keys == [f"01A:{version}" for version in range(1, 6)]

    tell(story)


def test_an_outage_survives_restarts(tell, receiver, monkeypatch):
    monkeypatch.setattr(module, "REGATHER_S", 1.0)

    async def story(run: Run) -> None:
        incidents = [on_mount(ident) for ident in ("01A", "01B", "01C")]
        for incident in incidents[:2]:
            await run.save(incident)
        for incident in incidents[:2]:
            run.notifier.note(opened(incident))
        await run.wait_for(1)
        await run.settle()
        await run.restart()
        for incident in incidents[:2]:
            run.notifier.note(updated(incident))
        await run.save(incidents[2])  # and the tower was killed before its alert was stored
        await run.restart()
        second = (await run.wait_for(2))[1]
        assert [ident for ident, _ in identities(second)] == ["01A", "01B", "01C"]
        await run.settle()
        for incident in incidents:
            await run.save(closed(incident).incident)
        await run.restart()
        third = (await run.wait_for(3))[2]
        assert third["status"] == "resolved"
        await run.settle()
        assert run.stored == {}
        assert len(receiver.accepted) == len(set(receiver.keys)) == 3

    tell(story)


def test_a_silenced_job_is_not_in_the_message_until_its_silence_ends(tell):
    async def story(run: Run) -> None:
        run.silenced.add("quiet")
        run.notifier.note(opened(on_mount("01A", "quiet")))
        run.notifier.note(opened(on_mount("01B", "loud")))
        first = (await run.wait_for(1))[0]
        assert identities(first) == [("01B", "firing")]
        run.silenced.clear()
        second = (await run.wait_for(2))[1]
        assert identities(second) == [("01B", "firing"), ("01A", "firing")]

    tell(story)


def test_an_incident_joins_no_message_that_is_acknowledged_or_over(tell, receiver):
    """A person would not be notified of an incident that was added to such a message."""

    async def story(run: Run) -> None:
        forged = on_mount("01A")
        run.notifier.note(opened(forged))
        await run.wait_for(1)
        run.notifier.note(acked(forged))
        await run.wait_for(2)
        run.notifier.note(opened(on_mount("01B")))
        third = (await run.wait_for(3))[2]
        assert third["groupKey"] == "watchtower:01B"
        run.notifier.note(closed(on_mount("01B")))
        await run.wait_for(4)
        run.notifier.note(opened(on_mount("01C")))
        fifth = (await run.wait_for(5))[4]
        assert fifth["groupKey"] == "watchtower:01C"
        run.notifier.note(closed(forged))
        last = (await run.wait_for(6))[5]
        assert (last["groupKey"], last["status"]) == ("watchtower:01A", "resolved")
        assert len(receiver.keys) == len(set(receiver.keys))

    tell(story)


def test_an_old_message_that_is_acknowledged_does_not_become_the_one_to_join():
    outages = OutageAlerts(NO_LINKS)
    forged = on_mount("01A")
    outages.put(alert_of(forged))
    outages.put(alert_of(acked(forged).incident))
    assert outages.put(alert_of(on_mount("01B"))).incident == "01B"
    outages.put(replace(alert_of(acked(forged).incident), version=9))
    assert outages.put(alert_of(on_mount("01C"))).incident == "01B"


def test_a_flood_of_one_owner_does_not_delay_an_outage_with_an_incident_of_another():
    outbox = Outbox()
    for number in range(500):
        alone = replace(alert_of(on_mount(f"02{number}"), "mallory"), outage="")
        outbox.put(alone, 0.0)
    forged, victim = alert_of(on_mount("01A"), "mallory"), alert_of(on_mount("01V"), "alice")
    outbox.put(message_of(forged, victim), 1.0)
    sent = []
    for _ in range(3):
        entry = outbox.find_next(1.0)
        assert entry is not None
        outbox.begin(entry, 1.0)
        outbox.note_delivered(entry.alert.incident, entry.alert.version, "", 1.0)
        sent.append(entry.alert.incident)
    assert "01A" in sent


def test_changes_after_the_first_message_are_gathered_longer(tell, receiver, monkeypatch):
    monkeypatch.setattr(module, "REGATHER_S", 3600.0)

    async def story(run: Run) -> None:
        run.notifier.note(opened(on_mount("01A")))
        await run.wait_for(1)
        (sender,) = run.notifier.senders.values()
        while sender.outbox.count_waiting():
            await asyncio.sleep(0.001)  # the receiver notes a request before it replies
        run.notifier.note(opened(on_mount("01B")))
        run.notifier.note(opened(an_incident("01C", "other")))
        second = (await run.wait_for(2))[1]
        assert second["groupKey"] == "watchtower:01C"
        while not sender.outbox.entries["01C"].is_delivered:
            await asyncio.sleep(0.01)
        await run.restart()  # the wait is not longer than the life of the tower
        third = (await run.wait_for(3))[2]
        assert [ident for ident, _ in identities(third)] == ["01A", "01B"]

    tell(story)


def test_alertmanager_gets_one_alert_for_each_incident(tmp_path: Path, receiver: Receiver):
    async def story(url: str) -> None:
        store = SqliteStore(tmp_path / "watchtower.db")
        destinations = [Webhook(receiver.url), Alertmanager(url)]
        notifier = AlertNotifier(destinations, store, Clock())
        notifier.start(lambda _: False)
        for ident in ("01A", "01B"):
            notifier.note(opened(on_mount(ident)))
        await asyncio.to_thread(receiver.wait_for, 1)
        while any(outbox.count_waiting() for outbox in notifier.outboxes().values()):
            await asyncio.sleep(0.01)
        await notifier.close()
        store.close()

    with serving() as api:
        asyncio.run(asyncio.wait_for(story(f"{api.url}/api/v2/alerts"), 100))
        bodies = [alert for body in api.bodies for alert in body]
    assert [one["labels"]["incident"] for one in bodies] == ["01A", "01B"]
    assert {one["labels"]["shared_cause"] for one in bodies} == {"mount nfs1:/data"}
    assert len(receiver.accepted) == 1


def alert_of(incident: Incident, sharer: str = "a", change: Change = Change.OPENED) -> Alert:
    event = IncidentEvent(change=change, incident=replace(incident, sharer=sharer))
    return make_alert(event, LINKS, None)


def message_of(*alerts: Alert) -> Alert:
    outages = OutageAlerts(LINKS)
    return [outages.put(alert) for alert in alerts][-1]


def test_a_user_with_many_incidents_hides_no_job_of_another_user():
    forged = [alert_of(on_mount(f"01F{number:03}"), "mallory") for number in range(100)]
    victim = alert_of(on_mount("01V", "victim"), "alice")
    message = message_of(*forged, victim)
    assert "victim" in message.lines[1]
    payload = make_payload(message)
    mine = [one for one in payload["alerts"] if one["fingerprint"] == "01V"]
    alone = make_payload(victim)["alerts"]
    assert mine == alone  # its identity, its text, its state


def test_names_in_a_message_of_an_outage_are_cleaned_and_bounded():
    evil = "x\x1b[31m\n<!channel>" + "y" * 999
    incidents = [replace(on_mount(f"01{n}"), job=evil) for n in range(9)]
    alerts = [alert_of(one, f"owner-{n}") for n, one in enumerate(incidents)]
    evil_cause = {"shared_cause": evil}
    message = message_of(*(replace(one, labels=one.labels | evil_cause) for one in alerts))
    assert len(message.lines) == 3
    assert all(line.isprintable() and len(line) <= MAX_LINE for line in message.lines)


def test_ranks_that_are_not_known_and_gpus_that_are():
    known = alert_of(on_mount("01A"))
    gpus = [
        replace(alert_of(on_mount(ident)), facts=replace(known.facts, gpus=4608))
        for ident in ("01A", "01B")
    ]
    assert message_of(*gpus).lines[0].endswith("2 jobs are hung, 9,216 GPUs")
    unknown = alert_of(on_mount("01B"))
    unknown = replace(unknown, facts=replace(unknown.facts, ranks=None))
    assert message_of(known, unknown).lines[0].endswith("2 jobs are hung, at least 8 ranks")


def test_a_message_has_the_labels_that_all_have_and_the_worst_severity():
    alerts = [alert_of(on_mount(ident)) for ident in ("01A", "01B")]
    for given, worst in ((("critical", "warning"), "critical"), (("info", "info"), "info")):
        labelled = [
            replace(one, labels=one.labels | {"severity": severity})
            for one, severity in zip(alerts, given, strict=True)
        ]
        assert message_of(*labelled).labels == {
            "alertname": "WatchtowerJobHung",
            "severity": worst,
            "shared_cause": "mount nfs1:/data",
            "kind": "hung",
            "domain": "storage",
        }


def test_an_outage_is_acknowledged_if_all_its_open_incidents_are():
    first, second = on_mount("01A"), on_mount("01B")
    message = message_of(alert_of(first), alert_of(second))
    one_acked = join_alert(message, alert_of(acked(first).incident), NO_LINKS)
    assert one_acked.facts.state is AlertState.OPEN
    assert "1 of 2 incidents are acknowledged" in one_acked.lines[1]
    both = join_alert(one_acked, alert_of(acked(second).incident), NO_LINKS)
    assert both.facts.state is AlertState.ACKED
    assert both.lines[0].startswith("[OUTAGE, acknowledged]")


def test_the_end_names_jobs_that_did_not_recover():
    first, second = on_mount("01A"), on_mount("01B")
    message = message_of(alert_of(first), alert_of(second))
    message = join_alert(message, alert_of(closed(first).incident, change=Change.CLOSED), NO_LINKS)
    ended = alert_of(closed(second, Status.ENDED).incident, change=Change.CLOSED)
    over = join_alert(message, ended, NO_LINKS)
    assert over.is_over
    assert over.lines[0].startswith(
        "[OUTAGE OVER] mount nfs1:/data: the incidents of 2 jobs are closed, 1 make"
    )


def test_slack_and_pagerduty_have_one_message_of_an_outage():
    first, second = alert_of(on_mount("01A")), alert_of(on_mount("01B"))
    outages = OutageAlerts(LINKS)
    ends = [
        alert_of(closed(on_mount(ident)).incident, change=Change.CLOSED) for ident in ("01A", "01B")
    ]
    messages = [outages.put(alert) for alert in (first, second, *ends)]
    with serving() as api:
        api.answer = lambda _: (200, b'{"ok":true,"channel":"C1","ts":"1.5"}')
        bot, receipt = SlackBot("xoxb-1", "#alerts", api.url), ""
        for message in messages:
            receipt = bot.deliver(message, receipt)
        posted = [body for body in api.bodies if "thread_ts" not in body and "ts" not in body]
        assert len(posted) == 1
        edits = [body for body in api.bodies if "ts" in body]
        assert "2 jobs are hung" in edits[0]["text"]
        assert "OUTAGE OVER" in edits[-1]["text"]
    with serving() as api:
        duty, receipt = PagerDuty(f"{api.url}/v2/enqueue", "key"), ""
        for message in messages:
            receipt = duty.deliver(message, receipt)
        assert [body["event_action"] for body in api.bodies] == ["trigger"] * 3 + ["resolve"]
        assert {body["dedup_key"] for body in api.bodies} == {"01A"}
        assert api.bodies[1]["payload"]["severity"] == "critical"
        assert api.bodies[1]["payload"]["component"] == "mount nfs1:/data"
        assert api.bodies[1]["links"][0]["href"] == "https://tower/"
        assert json.dumps(api.bodies[1])


def test_three_hundred_incidents_at_once_are_a_few_writes_and_a_few_messages(tell, receiver):
    async def story(run: Run) -> None:
        for number in range(300):
            run.notifier.note(opened(on_mount(f"01{number:03}")))
        while not receiver.accepted or len(receiver.accepted[-1]["alerts"]) < 300:
            await asyncio.sleep(0.05)
        await run.settle()
        assert len(receiver.accepted) <= 2
        assert run.stored == {"01000": (300, 300)}

    tell(story)
