"""Who may judge and alert, with a real database: a tower asks first if it may be replaced."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.alerts.notifying import an_incident, opened
from tests.system.store.test_postgres import take_over
from watchtower.alerts.alert import Alert
from watchtower.alerts.notifier import AlertNotifier
from watchtower.store import lease as leases
from watchtower.store.lease import GRACE_S, LEASE_S
from watchtower.store.postgres import PostgresStore
from watchtower.store.protocol import Store
from watchtower.tower.clock import Clock
from watchtower.tower.ownership import LONGEST_UNSTORED_S, UNSTORED_S, Ownership, Role


@pytest.fixture
def space(url: str) -> str:
    return url.rpartition("%3D")[2]


class Pager:
    """A destination that notes what it receives."""

    name, repeat_s, end_delay_s, joins_outages = "pager", None, 0.0, False

    def __init__(self) -> None:
        self.received: list[Alert] = []

    def deliver(self, alert: Alert, receipt: str) -> str:
        self.received.append(alert)
        return ""


def stand_still(store: Store, seconds: float = 60.0) -> None:
    """As after a SIGSTOP: the last renewal is long ago."""
    assert store.lease is not None
    store.lease.renewed_at -= seconds


def notify(store: Store, story: Callable[[AlertNotifier], Awaitable[None]]) -> list[Alert]:
    async def run() -> None:
        notifier, ownership = AlertNotifier([pager], store, Clock()), Ownership(store)
        notifier.start(
            lambda _: False,
            ownership.may_act,
            lambda _, waited_s: ownership.must_wait(waited_s, lambda: True),
        )
        await story(notifier)
        await notifier.close()

    pager = Pager()
    asyncio.run(run())
    return pager.received


async def note_one(notifier: AlertNotifier) -> None:
    notifier.note(opened(an_incident()))
    await asyncio.sleep(1.5)


def test_an_owner_alerts_and_one_that_was_replaced_does_not(make_store, server, space):
    first = make_store()
    assert len(notify(first, note_one)) == 1
    stand_still(first)
    assert len(notify(first, note_one)) == 1, "the lease is over, but no other tower took it"
    take_over(server, space)
    later = make_store()
    stand_still(first)
    assert notify(first, note_one) == []
    assert Ownership(first).role is Role.STANDBY
    assert Ownership(later).role is Role.OWNER
    assert later.lease.epoch == first.lease.epoch + 1


def test_a_tower_that_was_replaced_judges_no_more_and_says_so(make_store, server, space):
    first, lost = make_store(), list[str]()
    take_over(server, space)
    make_store()
    stand_still(first)
    ownership = Ownership(first)
    assert asyncio.run(ownership.may_act()) is False
    asyncio.run(asyncio.wait_for(ownership.hold(lambda: lost.append("lost")), 10))
    assert lost == ["lost"]
    assert "another tower took over" in ownership.describe()


def test_an_owner_alerts_from_memory_while_the_database_is_away(make_store, server):
    store = make_store()
    server.stop(signal.SIGQUIT)
    try:
        stand_still(store)
        ownership = Ownership(store)
        assert asyncio.run(ownership.may_act())
        assert "is lost" in ownership.describe_loss(time.time())
        assert len(notify(store, note_one)) == 1
    finally:
        server.start()
    store.check().result(20)
    assert ownership.describe_loss(time.time()) == ""


def test_what_is_not_stored_waits_while_another_tower_may_send_it(make_store, server, monkeypatch):
    store = make_store()
    store.lease.standbys = 1
    server.stop(signal.SIGQUIT)
    try:
        assert notify(store, note_one) == []
        monkeypatch.setattr("watchtower.tower.ownership.UNSTORED_S", 0.1)
        assert len(notify(store, note_one)) == 1, "within a bound it is sent all the same"
    finally:
        server.start()


def test_an_alert_about_ranks_that_report_elsewhere_waits_longer(make_store):
    store = make_store()
    ownership = Ownership(store)
    assert not ownership.must_wait(0.0, lambda: False), "no other tower is there"
    store.lease.standbys = 1
    assert ownership.must_wait(UNSTORED_S - 1, lambda: True)
    assert not ownership.must_wait(UNSTORED_S, lambda: True)
    assert ownership.must_wait(UNSTORED_S, lambda: False)
    assert not ownership.must_wait(LONGEST_UNSTORED_S, lambda: False)


def test_an_owner_that_is_sure_does_not_ask(make_store):
    store = make_store()
    store.close()  # a call would raise
    assert asyncio.run(Ownership(store).may_act())


def claims_until_owner(store: PostgresStore, at_most_s: float = 20.0) -> float:
    began = time.monotonic()
    while not store.claim().result(10):
        assert time.monotonic() - began < at_most_s
        time.sleep(0.1)
    return time.monotonic() - began


def test_a_tower_on_standby_waits_for_the_lease_and_gives_its_owner_time(
    url, make_store, server, space, monkeypatch
):
    owner, waiting = make_store(), PostgresStore(url, standby=True)
    try:
        assert not waiting.claim().result(10)
        assert waiting.lease.owner == owner.lease.tower
        server.execute(f"UPDATE {space}.leases SET until = 1")
        assert claims_until_owner(waiting) >= GRACE_S - 0.2
        assert (waiting.lease.epoch, waiting.lease.is_held) == (2, True)
    finally:
        waiting.close()


def test_after_a_restart_of_the_database_its_owner_comes_before_the_others(
    url, make_store, server, space
):
    owner, waiting = make_store(), PostgresStore(url, standby=True)
    try:
        assert not waiting.claim().result(10)
        server.stop(signal.SIGQUIT)
        server.start()
        server.execute(f"UPDATE {space}.leases SET until = 1")
        with pytest.raises(Exception):  # noqa: B017,PT011 - its connection is lost
            waiting.claim().result(10)
        assert not waiting.claim().result(10), "it counts from its new connection on"
        owner.check().result(10)
        time.sleep(GRACE_S)
        assert not waiting.claim().result(10)
    finally:
        waiting.close()


def test_an_owner_counts_the_towers_on_standby(url, make_store, monkeypatch):
    monkeypatch.setattr("watchtower.store.postgres.PRESENT_S", 0.0)
    owner, waiting = make_store(), PostgresStore(url, standby=True)
    waiting.lease.url = "http://b:19660"
    owner.lease.url = "http://a:19660"
    owner.check().result(10)
    waiting.claim().result(10)
    assert (owner.lease.standbys, waiting.lease.owner_url) == (1, "http://a:19660")
    waiting.close()
    owner.check().result(10)
    assert owner.lease.standbys == 0


def test_all_towers_have_one_key_and_a_file_has_none(url, make_store, tmp_path):
    store = make_store()
    assert store.shared_key("session", "aa") == store.shared_key("session", "bb") == "aa"


def test_an_age_counts_while_the_process_stands_still():
    lease = leases.Lease(tower="a", epoch=1, is_held=True, renewed_at=100.0)
    assert lease.is_sure(100.0 + LEASE_S - 0.1)
    assert not lease.is_sure(100.0 + LEASE_S)
    lease.lost = "another one"
    assert not lease.is_sure(100.0)
