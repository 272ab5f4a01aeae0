"""Notifications to systemd, by value and over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.listening import ServiceManager
from tests.diagnosers import in_thread
from watchtower.app import tick_forever
from watchtower.policy import Policy
from watchtower.service.daemon import MAX_STATUS, RETRY_S, Notifier
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower


@pytest.fixture
def manager() -> Iterator[ServiceManager]:
    with ServiceManager(watchdog_s=60.0) as one:
        yield one


def test_the_first_sign_of_life_says_ready(manager: ServiceManager):
    Notifier(manager.environment).alive(100.0, "8 ranks watched")
    assert manager.hear() == ["READY=1", "WATCHDOG=1", "STATUS=8 ranks watched"]


def test_a_socket_with_a_path_is_spoken_to_as_well(tmp_path: Path):
    with ServiceManager(tmp_path / "notify") as manager:
        Notifier(manager.environment).alive(0.0, "")
        assert manager.hear() == ["READY=1"]


def test_the_watchdog_is_fed_twice_in_its_period_and_the_status_told_when_it_changes(
    manager: ServiceManager,
):
    notifier = Notifier(manager.environment)
    assert notifier.alive(100.0, "calm") == 130.0
    manager.hear()
    assert notifier.alive(129.9, "calm") == 130.0
    assert manager.hear() == []
    assert notifier.alive(130.0, "calm") == 160.0
    assert manager.hear() == ["WATCHDOG=1"]
    notifier.alive(131.0, "hung: llama")
    assert manager.hear() == ["STATUS=hung: llama"]


def test_without_a_watchdog_nobody_is_fed(tmp_path: Path):
    with ServiceManager() as manager:
        assert Notifier(manager.environment).alive(1.0, "") == float("inf")
        assert manager.hear() == ["READY=1"]


@pytest.mark.parametrize("usec", ["", "0", "-5", "x", "²"])
def test_a_period_that_is_no_number_is_no_watchdog(manager: ServiceManager, usec: str):
    notifier = Notifier(manager.environment | {"WATCHDOG_USEC": usec})
    assert notifier.alive(1.0, "") == float("inf")


def test_a_watchdog_of_another_process_is_not_ours_to_feed(manager: ServiceManager):
    other = manager.environment | {"WATCHDOG_PID": str(os.getppid())}
    assert Notifier(other).alive(1.0, "") == float("inf")
    own = manager.environment | {"WATCHDOG_PID": str(os.getpid())}
    assert Notifier(own).alive(1.0, "") == 31.0


def test_a_status_cannot_bring_in_variables_of_its_own(manager: ServiceManager):
    Notifier(manager.environment).alive(0.0, "x\nSTOPPING=1\r\u2028\0" + "é\udc80" * 300)
    *_, status = manager.hear()
    assert status.startswith("STATUS=x STOPPING=1")
    assert "STOPPING=1" not in manager.lines
    assert len(status) <= len("STATUS=") + MAX_STATUS


def test_stopping_is_told(manager: ServiceManager):
    Notifier(manager.environment).stopping()
    assert "STOPPING=1" in manager.hear()


def test_a_full_socket_never_blocks_and_what_it_missed_is_told_later(manager: ServiceManager):
    flood = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with flood, contextlib.suppress(BlockingIOError):
        while True:
            flood.sendto(b"X=1", "\0" + manager.environment["NOTIFY_SOCKET"][1:])
    notifier = Notifier(manager.environment)
    assert notifier.alive(5.0, "calm") == 5.0 + RETRY_S
    assert "READY=1" not in manager.hear()
    notifier.alive(6.0, "calm")
    assert manager.hear() == ["READY=1", "WATCHDOG=1", "STATUS=calm"]


@pytest.mark.parametrize(
    "name", ["", "vsock:2:1234", "relative", "/nowhere/at/all", "@" + "x" * 200]
)
def test_nobody_listening_is_no_trouble(name: str):
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2000000"})
    assert notifier.alive(10.0, "calm") == 11.0
    notifier.stopping()


class BrokenClock(Clock):
    """A clock that fails on request, and every look at the jobs with it."""

    is_broken = False

    def now(self) -> float:
        """Fail, or tell the time."""
        if BrokenClock.is_broken:
            raise ValueError("the clock is broken")
        return super().now()


def test_a_tick_that_fails_does_not_feed_the_watchdog(tmp_path: Path):
    async def story(manager: ServiceManager) -> None:
        store = SqliteStore(tmp_path / "watchtower.db")
        tower = Tower(Policy(), store, store.recall(), BrokenClock(), in_thread)
        ticking = asyncio.create_task(tick_forever(tower, Notifier(manager.environment), 0.02))
        try:
            await asyncio.to_thread(manager.hear_until, "WATCHDOG=1")
            BrokenClock.is_broken = True
            await asyncio.sleep(0.1)  # whatever was under way
            manager.hear()
            await asyncio.sleep(0.5)
            assert manager.hear() == []
            BrokenClock.is_broken = False
            await asyncio.to_thread(manager.hear_until, "WATCHDOG=1")
        finally:
            BrokenClock.is_broken = False
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            await tower.close()
            store.close()

    with ServiceManager(watchdog_s=0.2) as manager:
        asyncio.run(story(manager))
        assert manager.lines[:3] == ["READY=1", "WATCHDOG=1", "STATUS=0 jobs on 0 nodes"]
