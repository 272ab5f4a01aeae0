"""A rank that waits for clients in a job without heartbeats is not accused."""

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    a_case,
    a_kernel,
    a_rank,
    picture_of,
    ranks_in,
    with_rank,
)
from watchtower.diagnosis.diagnosis import diagnose

SERVING = "select @selectors.py:415 < serve_forever @socketserver.py:233 < <module> serve.py:40"
GRPC = (
    "wait @threading.py:320 < _wait_once @grpc/_common.py:120 < wait @grpc/_common.py:150"
    " < wait_for_termination @grpc/_server.py:1480 < <module> serve.py:40"
)
LOOP = (
    "select @selectors.py:468 < _run_once @asyncio/base_events.py:1898"
    " < run_forever @asyncio/base_events.py:607 < run @asyncio/runners.py:118"
    " < <module> serve.py:40"
)
LISTENS = {"syscall": "epoll_wait", "target": "tcp 0.0.0.0:8000 listening"}


def job(server, **values):
    return a_case(with_rank(ranks_in(4, IN_ALL_REDUCE, **values), server))


@pytest.mark.parametrize(
    ("stack", "kernel"), [(SERVING, {}), (GRPC, {"syscall": "futex"}), (LOOP, LISTENS)]
)
def test_a_server_without_requests_is_no_culprit(stack, kernel):
    diagnosis = diagnose(job(a_rank(0, stack, step=None, **kernel), step=None))
    assert diagnosis.cause.value == "unknown"
    assert not diagnosis.suspects


@pytest.mark.parametrize(("stack", "kernel"), [(SERVING, {}), (LOOP, LISTENS)])
def test_a_rank_that_trains_beside_a_server_serves_nobody(stack, kernel):
    """Such as metrics that main serves while a thread trains."""
    values = {"thread_values": {"kernel": a_kernel("S", "read", "/data/shard")}, "step": None}
    trains = a_rank(0, stack, threads=(("trainer", FETCHING),), **values, **kernel)
    if stack is LOOP:
        assert [suspect.rank for suspect in diagnose(job(trains, step=None)).suspects] == [0]
    waits = a_rank(0, stack, threads=(("trainer", IN_ALL_REDUCE),), **values, **kernel)
    assert picture_of([waits]).by_rank[0].waits


def test_an_event_loop_that_serves_nobody_may_be_one():
    diagnosis = diagnose(job(a_rank(0, LOOP, step=None, syscall="epoll_wait"), step=None))
    assert [suspect.rank for suspect in diagnosis.suspects] == [0]


def test_in_a_job_with_heartbeats_steps_are_due():
    diagnosis = diagnose(job(a_rank(0, SERVING)))
    assert [suspect.rank for suspect in diagnosis.suspects] == [0]
