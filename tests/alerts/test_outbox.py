"""The outbox of one destination, with the time as an argument."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tests.properties import examples
from watchtower.alerts.alert import Alert
from watchtower.alerts.destinations.webhook import Webhook
from watchtower.alerts.message import AlertFacts
from watchtower.alerts.notifier import AlertNotifier
from watchtower.alerts.outbox import BURST, END_GIVEN_UP_S, LAST_RETRY_S, MAX_ALERTS, Outbox
from watchtower.api.job_metrics import collect_outboxes
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock


def an_alert(
    incident: str = "i1",
    version: int = 1,
    *,
    over: bool = False,
    sharer: str = "a",
    founder: str = "",
):
    closed_at = 2.0 if over else None
    return Alert(
        incident=incident,
        version=version,
        facts=AlertFacts(),
        closed_at=closed_at,
        sharer=sharer,
        founder=founder,
    )


def send(outbox: Outbox, now: float) -> Alert | None:
    """Deliver the next alert successfully."""
    entry = outbox.find_next(now)
    if entry is None:
        return None
    outbox.begin(entry, now)
    outbox.note_delivered(entry.alert.incident, entry.alert.version, "r", now)
    return entry.alert


def test_each_version_is_sent_once():
    outbox = Outbox()
    outbox.put(an_alert(), 0.0)
    assert send(outbox, 0.0) == an_alert()
    assert send(outbox, 1e6) is None
    outbox.put(an_alert(version=2), 1e6)
    assert send(outbox, 1e6) == an_alert(version=2)
    assert send(outbox, 1e7) is None


def test_a_destination_that_was_down_gets_the_current_state_only():
    outbox = Outbox()
    outbox.put(an_alert(), 0.0)
    entry = outbox.find_next(0.0)
    assert entry is not None
    outbox.begin(entry, 0.0)
    outbox.note_failed("i1", 0.0, is_permanent=False, retry_after_s=None)
    outbox.put(an_alert(version=2), 0.1)
    outbox.put(an_alert(version=3, over=True), 0.2)
    assert send(outbox, 0.5) is None
    assert send(outbox, 1.0) == an_alert(version=3, over=True)
    assert not outbox.entries


def test_a_change_during_a_delivery_is_sent_afterwards():
    outbox = Outbox()
    outbox.put(an_alert(), 0.0)
    entry = outbox.find_next(0.0)
    assert entry is not None
    outbox.begin(entry, 0.0)
    outbox.put(an_alert(version=2), 0.5)
    assert outbox.find_next(0.6) is None or outbox.entries["i1"].alert.version == 2
    outbox.note_delivered("i1", 1, "r", 1.0)
    assert send(outbox, 1.0) == an_alert(version=2)


def test_waits_between_attempts_grow_up_to_a_limit():
    outbox, now, waits = Outbox(), 0.0, []
    outbox.put(an_alert(), now)
    for _ in range(12):
        entry = outbox.find_next(now)
        assert entry is not None
        outbox.begin(entry, now)
        waits.append(outbox.note_failed("i1", now, is_permanent=False, retry_after_s=None))
        assert outbox.find_next(now + waits[-1] - 0.01) is None
        now += waits[-1]
    assert waits[:5] == [1, 2, 4, 8, 16]
    assert waits[-1] == LAST_RETRY_S
    assert outbox.failures == 12
    assert outbox.oldest_s(now) == now


def test_a_refusal_waits_long_and_a_destination_may_ask_for_time():
    outbox = Outbox()
    outbox.put(an_alert(), 0.0)
    assert outbox.note_failed("i1", 0.0, is_permanent=True, retry_after_s=None) == LAST_RETRY_S
    assert outbox.note_failed("i1", 0.0, is_permanent=False, retry_after_s=30.0) == 30.0
    assert outbox.note_failed("i1", 0.0, is_permanent=False, retry_after_s=1e9) == LAST_RETRY_S


def test_an_open_alert_is_repeated_where_the_destination_needs_that():
    outbox = Outbox(repeat_s=60.0)
    outbox.put(an_alert(), 0.0)
    assert send(outbox, 0.0)
    assert send(outbox, 59.0) is None
    assert send(outbox, 60.0) == an_alert()
    assert outbox.count_waiting() == 0
    outbox.put(an_alert(version=2, over=True), 61.0)
    assert send(outbox, 61.0)
    assert not outbox.entries


def test_the_alerts_of_one_owner_do_not_delay_those_of_another():
    outbox = Outbox()
    for number in range(500):
        outbox.put(an_alert(f"many-{number}", sharer="many"), 0.0)
    outbox.put(an_alert("one", sharer="few"), 1.0)
    sent = [send(outbox, 1.0) for _ in range(3)]
    assert "one" in {alert.incident for alert in sent if alert}


def test_owners_that_a_node_invents_do_not_delay_the_alerts_of_another_owner():
    """Each second the node invents two more owners, so that the outbox is never empty."""
    outbox, waits = Outbox(), []
    for now in range(300):
        for number in range(2):
            outbox.put(an_alert(f"{now}-{number}", sharer=f"{now}-{number}", founder="n9"), now)
        if now % 100 == 50:
            outbox.put(an_alert(f"real-{now}", sharer="real", founder="n0"), now)
        while alert := send(outbox, now):
            if alert.sharer == "real":
                waits.append(now - int(alert.incident.removeprefix("real-")))
    assert len(waits) == 3
    assert max(waits) <= 1


def test_alerts_that_were_sent_long_ago_count_little():
    outbox = Outbox()
    outbox.put(an_alert("stuck", sharer="stuck"), 0.0)  # so that the outbox is never empty
    outbox.begin(outbox.entries["stuck"], 0.0)
    for number in range(20):
        outbox.put(an_alert(f"{number}", sharer="early"), 0.0)
        assert send(outbox, 0.0)
    outbox.put(an_alert("before", sharer="late"), 890.0)
    assert send(outbox, 890.0)
    outbox.put(an_alert("late", sharer="late"), 900.0)
    outbox.put(an_alert("early", sharer="early"), 900.0)
    assert [alert.incident for _ in range(2) if (alert := send(outbox, 900.0))] == ["early", "late"]


def test_the_rate_is_limited_and_nothing_is_lost():
    outbox, now, sent = Outbox(), 0.0, set()
    for number in range(200):
        outbox.put(an_alert(f"i{number}"), now)
    while alert := send(outbox, now):
        sent.add(alert.incident)
    assert len(sent) == BURST
    while len(sent) < 200:
        wait_s = outbox.wait_s(now)
        assert 0 < wait_s <= 1.01
        now += wait_s
        if alert := send(outbox, now):
            sent.add(alert.incident)
    assert now <= 200


def test_the_number_of_alerts_is_bounded():
    outbox = Outbox()
    assert not any(outbox.put(an_alert(f"i{n}"), 0.0) for n in range(MAX_ALERTS))
    assert outbox.put(an_alert("one more"), 0.0) == an_alert("one more")
    assert outbox.put(an_alert("i1", version=2), 0.0) is None
    assert len(outbox.entries) == MAX_ALERTS


def test_an_owner_with_too_many_alerts_loses_one_of_them_for_another_owner():
    outbox = Outbox()
    for n in range(MAX_ALERTS):
        outbox.put(an_alert(f"i{n}", sharer="many"), 0.0)
    assert send(outbox, 0.0) == an_alert("i0", sharer="many")
    dropped = outbox.put(an_alert("one", sharer="few"), 1.0)
    assert dropped == an_alert(f"i{MAX_ALERTS - 1}", sharer="many")
    assert send(outbox, 1.0) == an_alert("one", sharer="few")
    assert "i0" in outbox.entries  # its end must still be sent


def test_a_destination_that_asks_for_time_gets_no_other_alert_meanwhile():
    outbox = Outbox()
    outbox.put(an_alert("a"), 0.0)
    outbox.put(an_alert("b"), 0.0)
    entry = outbox.find_next(0.0)
    assert entry is not None
    outbox.begin(entry, 0.0)
    outbox.note_failed("a", 0.0, is_permanent=False, retry_after_s=30.0)
    assert outbox.find_next(29.0) is None
    assert outbox.wait_s(10.0) == 20.0
    assert send(outbox, 30.0)
    assert send(outbox, 30.0)


def test_a_restored_outbox_sends_what_was_not_sent_and_nothing_else():
    outbox = Outbox()
    outbox.restore(an_alert("sent", version=2), 2, "r", 5.0, 100.0)
    outbox.restore(an_alert("not sent", version=2), 1, "r", 5.0, 100.0)
    assert outbox.oldest_s(100.0) == 5.0
    alert = send(outbox, 100.0)
    assert alert is not None
    assert alert.incident == "not sent"
    assert send(outbox, 200.0) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30))
@examples(100)
def test_whatever_fails_in_between_the_last_version_arrives(steps: list[tuple[str, bool]]):
    outbox, now = Outbox(), 0.0
    received: dict[str, int] = {}
    last: dict[str, int] = {}

    def work(fails: bool) -> None:
        entry = outbox.find_next(now)
        if entry is None:
            return
        outbox.begin(entry, now)
        ident, sent = entry.alert.incident, entry.alert.version
        if fails:
            outbox.note_failed(ident, now, is_permanent=False, retry_after_s=None)
        else:
            assert received.get(ident, 0) < sent, "sent twice"
            received[ident] = sent
            outbox.note_delivered(ident, sent, "", now)

    for version, (ident, fails) in enumerate(steps, start=1):
        last[ident] = version
        outbox.put(replace(an_alert(ident), version=version), now)
        work(fails)
        now += 0.7
    for _ in range(100):
        now += LAST_RETRY_S
        work(False)
    assert received == last


def answer(outbox: Outbox, now: float, refused: str = "") -> list[str]:
    """Send the next request; the destination refuses it if it contains `refused`."""
    entry = outbox.find_next(now)
    if entry is None:
        return []
    outbox.begin(entry, now)
    more = outbox.find_more(now)
    for other in more:
        outbox.join(other, now)
    sent = [each.alert for each in (entry, *more)]
    incidents = [alert.incident for alert in sent]
    if refused not in incidents:
        for alert in sent:
            outbox.note_delivered(alert.incident, alert.version, "", now)
    elif len(incidents) > 1:
        outbox.split(incidents, now)
    else:
        outbox.note_failed(refused, now, is_permanent=True, retry_after_s=None)
    return incidents


def test_with_500_open_alerts_a_new_one_arrives_within_a_second_and_none_ends():
    """A destination that forgets an alert after 240 s, and of which each request takes 0.3 s."""
    outbox, now, news = Outbox(repeat_s=60.0, most=100), 0.0, 0
    received: dict[str, float] = {}
    for number in range(500):
        outbox.put(an_alert(f"i{number}", sharer=f"s{number % 7}"), now)
    put_at: dict[str, float] = {}
    while now < 300:
        if now > 30 and now > 30 + 7 * news:
            outbox.put(an_alert(f"new-{news}"), now)
            put_at[f"new-{news}"] = now
            news += 1
        for incident in answer(outbox, now):
            if incident not in received and incident in put_at:
                assert now + 0.3 - put_at[incident] <= 1.0
            received[incident] = now
        now += 0.3
        assert now < 12 or len(received) >= 500
        assert all(now - at <= 120 for at in received.values())
    assert put_at.keys() - received.keys() <= {f"new-{news - 1}"}


def test_one_alert_per_request_sends_news_before_repeats():
    outbox = Outbox(repeat_s=60.0)
    for number in range(20):
        outbox.put(an_alert(f"i{number}"), 0.0)
        assert send(outbox, 0.0)
    for number in range(3):
        outbox.put(an_alert(f"new-{number}", sharer="b"), 100.0)
    assert {alert.incident for _ in range(3) if (alert := send(outbox, 100.0))} == {
        "new-0",
        "new-1",
        "new-2",
    }


def test_an_alert_that_is_refused_delays_no_other_one_of_its_request():
    outbox, now, received = Outbox(repeat_s=60.0, most=64), 0.0, set()
    for number in range(100):
        outbox.put(an_alert(f"i{number}"), now)
    while now < 30:
        sent = answer(outbox, now, refused="i37")
        if "i37" not in sent:
            received.update(sent)
        now += 0.5
    assert len(received) == 99
    assert outbox.entries["i37"].attempts >= 1
    assert outbox.count_waiting() == 1


def test_an_alert_that_must_be_repeated_is_retried_before_it_ends():
    outbox = Outbox(repeat_s=60.0)
    outbox.put(an_alert(), 0.0)
    for _ in range(12):
        wait_s = outbox.note_failed("i1", 0.0, is_permanent=False, retry_after_s=None)
        assert wait_s <= 60.0
    assert outbox.note_failed("i1", 0.0, is_permanent=True, retry_after_s=None) == 60.0


def test_open_alerts_are_sent_before_the_ends_of_others():
    outbox = Outbox()
    for number in range(40):
        outbox.put(an_alert(f"ended{number}", over=True), 0.0)
    outbox.put(an_alert("open"), 1.0)
    sent = send(outbox, 1.0)
    assert sent is not None
    assert sent.incident == "open"


def test_an_end_that_is_refused_for_a_day_is_given_up_and_an_open_alert_is_not():
    outbox = Outbox()
    outbox.put(an_alert("open"), 0.0)
    outbox.put(an_alert("ended", over=True), 0.0)
    for now in (0.0, END_GIVEN_UP_S - 1.0):
        outbox.note_failed("ended", now, is_permanent=True, retry_after_s=None)
        assert not outbox.give_up_end("ended", now)
    assert outbox.give_up_end("ended", END_GIVEN_UP_S)
    assert not outbox.give_up_end("open", 10 * END_GIVEN_UP_S)
    assert list(outbox.entries) == ["open"]


class At(Clock):
    """A clock that stands still."""

    def now(self) -> float:
        return 100.0


class Page(Collector):
    """The families of the outboxes at one moment."""

    def __init__(self, alerts: AlertNotifier) -> None:
        self._alerts = alerts

    def collect(self) -> list[Metric]:
        return collect_outboxes(self._alerts.outboxes(), 100.0)


def scrape(alerts: AlertNotifier) -> list[str]:
    registry = CollectorRegistry()
    registry.register(Page(alerts))
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if line.startswith("watchtower_")]


def test_each_destination_has_its_series(tmp_path: Path):
    store = SqliteStore(tmp_path / "watchtower.db")
    places = [Webhook("http://a.example"), Webhook("http://b.example", name="second")]
    alerts = AlertNotifier(places, store, At())
    outbox = alerts.outboxes()["webhook"]
    outbox.put(an_alert("sent"), 50.0)
    assert send(outbox, 50.0)
    outbox.put(an_alert("waits"), 60.0)
    outbox.note_failed("waits", 61.0, is_permanent=False, retry_after_s=None)
    assert scrape(alerts) == [
        'watchtower_outbox_waiting{destination="webhook"} 1.0',
        'watchtower_outbox_waiting{destination="second"} 0.0',
        'watchtower_outbox_oldest_seconds{destination="webhook"} 40.0',
        'watchtower_outbox_oldest_seconds{destination="second"} 0.0',
        'watchtower_outbox_deliveries_total{destination="webhook"} 1.0',
        'watchtower_outbox_deliveries_total{destination="second"} 0.0',
        'watchtower_outbox_failures_total{destination="webhook"} 1.0',
        'watchtower_outbox_failures_total{destination="second"} 0.0',
    ]
    for sender in alerts.senders.values():
        sender.thread.stop(1.0)
    store.close()


def test_without_destinations_there_are_no_series(tmp_path: Path):
    store = SqliteStore(tmp_path / "watchtower.db")
    assert scrape(AlertNotifier([], store, At())) == []
    store.close()
