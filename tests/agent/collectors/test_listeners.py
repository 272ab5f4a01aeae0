"""Which process listens at the port that a rank needed: real sockets, of this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agent.collectors.listeners import FRESH_S, KEPT_S, Ended, Listeners
from watchtower.wire.report import Ending, EndingKind

PID = 4711
CODE = Ending(kind=EndingKind.EXIT, code=1, age_s=0.0)


@pytest.fixture(params=["127.0.0.1", "::1"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as listening:
        listening.bind((request.param, 0))
        listening.listen()
        yield listening.getsockname()[1]


def ended(text: str = "", *, ending: Ending = CODE, **values: object) -> Ended:
    kind, _, text = text.partition(": ")
    known = replace(ending, exception_type=kind, exception_text=text)
    usual = {"rendezvous": "", "serves": True, "network": os.readlink("/proc/self/ns/net")}
    return Ended(pid=PID, start_time=1, job="mine", ending=known, **{**usual, **values})


def observe(*ends: Ended, job: str = "other", now: float = 100.0) -> list[str]:
    found = list(Listeners("/", lambda: ends, lambda _: job).collect(now))
    assert all((each.pid, each.subject) == (PID, f"pid:{PID}") for each in found)
    return [each.text for each in found]


@pytest.mark.parametrize(
    "text",
    [
        "DistNetworkError: The server socket has failed to listen. port: {}, code: -98, EADDRINUSE",
        "RuntimeError: The server socket has failed to bind to [::]:{} (Address already in use).",
        "OSError: error on attempting to bind on address ('::1', {}, 0): address already in use",
        "OSError: [Errno 98] Address already in use",
    ],
)
def test_the_process_is_named_whatever_library_wrote_the_text(port: int, text: str):
    (found,) = observe(ended(text.format(port), rendezvous=f"node1:{port}"))
    assert found.startswith(f"pid {os.getpid()} (")
    assert ", job other, " in found
    assert found.endswith(f":{port}")


def test_a_rank_that_serves_and_whose_error_is_not_known_needed_the_port_of_its_job(port: int):
    serves = ended(rendezvous=f"node1:{port}")
    assert len(observe(serves)) == 1
    assert observe(serves._replace(serves=False)) == []
    assert observe(serves, job="mine") == []


@pytest.mark.parametrize(
    "other",
    [
        Ending(kind=EndingKind.EXIT, code=0, age_s=0.0),
        Ending(kind=EndingKind.SIGNAL, code=9, age_s=0.0),
        Ending(kind=EndingKind.UNKNOWN, age_s=0.0),
        replace(CODE, age_s=FRESH_S + 1),
    ],
    ids=["finished", "killed", "unknown", "long ago"],
)
def test_other_ends_need_no_port(port: int, other: Ending):
    assert observe(ended(ending=other, rendezvous=f"node1:{port}")) == []


def test_another_error_or_a_port_at_which_no_process_listens_is_not_reported(port: int):
    assert observe(ended(f"ValueError: port: {port}", rendezvous=f"node1:{port}")) == []
    assert observe(ended("OSError: [Errno 98] Address already in use", rendezvous="node1:1")) == []
    elsewhere = ended(rendezvous=f"node1:{port}", network="net:[1]")
    assert observe(elsewhere) == []


def test_what_was_found_stays_for_a_while(port: int):
    ends = [ended(rendezvous=f"node1:{port}")]
    listeners = Listeners("/", lambda: ends, lambda _: "other")
    assert [each.age_s for each in listeners.collect(100.0)] == [0.0]
    ends.clear()
    assert [each.age_s for each in listeners.collect(130.0)] == [30.0]
    assert list(listeners.collect(101.0 + KEPT_S)) == []
