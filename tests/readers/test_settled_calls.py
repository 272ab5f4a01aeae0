"""Whether each recorded call is over, open or unknown, by value and by property."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.agent.dumpers.test_collectives import GROUPS, a_reply, an_entry, calls, logs_of
from watchtower.evidence.collective_log import CallLog, Over
from watchtower.readers.collective_calls import Settled, settle
from watchtower.readers.torch_records import TorchRecords
from watchtower.wire.bounds import MAX_GROUP_RECORDS, MAX_UNKNOWN_CALLS


def settled(reply: TorchRecords, recorder: str = "gloo") -> Settled:
    (group,) = reply.groups
    return settle(recorder, reply, group.calls)


def known(reply: TorchRecords, recorder: str = "gloo") -> tuple[int | None, tuple[int, ...]]:
    """Return the number of the first open call, and the unknown numbers."""
    found = settled(reply, recorder)
    return found.first_open.number if found.first_open else None, found.unknown


@pytest.mark.parametrize("recorder", ["gloo", "nccl"])
@given(over=st.integers(0, 12), opened=st.integers(0, 12), first=st.integers(1, 50))
def test_in_a_log_without_holes_the_open_calls_are_the_last(
    recorder: str, over: int, opened: int, first: int
) -> None:
    assume(over + opened)
    reply = a_reply(
        *(
            an_entry(first + at, over=at < over, record_id=first - 1 + at)
            for at in range(over + opened)
        )
    )
    assert known(reply, recorder) == (first + over if opened else None, ())
    log = logs_of(recorder, reply, GROUPS[:1])["world"]
    assert (log.called, log.completed) == (first + over + opened - 1, first + over - 1)
    assert log.unknown == ()
    assert len(log.records) == min(over + opened, MAX_GROUP_RECORDS)


@given(
    numbers=st.sets(st.integers(1, 30), min_size=1),
    over=st.sets(st.integers(1, 30)),
    recorder=st.sampled_from(["gloo", "nccl"]),
)
def test_whatever_is_missing_no_call_before_one_that_is_over_is_open(
    numbers: set[int], over: set[int], recorder: str
) -> None:
    reply = a_reply(*(an_entry(each, over=each in over, record_id=each - 1) for each in numbers))
    opened, unknown = known(reply, recorder)
    last_over = max(numbers & over, default=0)
    assert opened is None or (opened > last_over and opened in numbers - over)
    assert not set(unknown) & numbers & over
    log = logs_of(recorder, reply, GROUPS[:1])["world"]
    assert log.unknown == unknown[-MAX_UNKNOWN_CALLS:]
    assert log.completed == (log.called if opened is None else opened - 1)
    read = CallLog(log)
    assert all(read.is_over(number) is not Over.YES for number in unknown)
    assert opened is None or read.is_over(opened) is Over.NO


def test_a_monitored_barrier_has_no_record_and_is_over_after_the_next_call() -> None:
    after, waits = an_entry(4, over=True), an_entry(4, over=False)
    assert known(a_reply(an_entry(1), after)) == (None, ())
    assert known(a_reply(an_entry(1), waits)) == (4, (2, 3))
    log = logs_of("gloo", a_reply(an_entry(1), waits), GROUPS[:1])["world"]
    assert (log.called, log.completed, log.unknown) == (4, 3, (2, 3))


def test_of_many_unknown_calls_none_reads_as_over() -> None:
    """Agents send the newest of them."""
    opened = {number: number % 2 == 1 for number in range(1, 31)}
    reply = a_reply(
        *(an_entry(n, over=not is_open, record_id=n - 1) for n, is_open in opened.items())
    )
    log = logs_of("gloo", reply, GROUPS[:1])["world"]
    assert len(log.unknown) == MAX_UNKNOWN_CALLS
    over = [number for number in opened if CallLog(log).is_over(number) is Over.YES]
    assert over == [16, 18, 20, 22, 24, 26, 28, 30]


def test_before_the_first_record_of_a_whole_ring_calls_may_be_missing() -> None:
    assert known(a_reply(an_entry(3, over=False))) == (3, (1, 2))
    assert known(a_reply(an_entry(3, over=False, record_id=9))) == (3, ())


def test_a_call_left_open_before_one_that_is_over_is_unknown_on_gloo_and_over_on_nccl() -> None:
    reply = calls(True, False, True)
    assert known(reply, "gloo") == (None, (2,))
    assert known(reply, "nccl") == (None, ())


def test_a_gap_of_any_size_costs_little() -> None:
    opened, unknown = known(a_reply(an_entry(1), an_entry(2**40, over=False)))
    assert (opened, len(unknown)) == (2**40, MAX_UNKNOWN_CALLS)


def test_a_call_that_the_process_has_outlived_is_not_known_to_be_open() -> None:
    """As of a communicator that was aborted: NCCL never completes its calls."""
    made = {"timeout_ms": 600_000, "time_created_ns": 10**18}
    lost = an_entry(1, over=False, **made)
    other = {"process_group": ["1", "new"], "pg_id": 1, "record_id": 1}

    def reply(later_s: int) -> TorchRecords:
        later = an_entry(1, **other, time_created_ns=10**18 + later_s * 10**9)
        return a_reply({**lost, "pg_id": 0}, later)

    for seconds, expected in ((599, (1, ())), (601, (None, (1,)))):
        found = reply(seconds)
        assert known(replace(found, groups=found.groups[:1]), "nccl") == expected


# NCCL by its documentation: calls that were submitted as one


def coalesced(number: int, *, over: bool) -> list[dict[str, Any]]:
    """Two collectives, and the entry that ends them. Only that one is ever completed."""
    parts = [an_entry(number, over=False, state="scheduled", record_id=at) for at in (0, 1)]
    last = an_entry(number, over=over, state="completed" if over else "scheduled", record_id=2)
    return [*parts, {**last, "profiling_name": "nccl:coalesced"}]


def test_calls_submitted_as_one_are_over_with_the_last_of_them() -> None:
    assert known(a_reply(*coalesced(1, over=True)), "nccl") == (None, ())
    assert known(a_reply(*coalesced(1, over=False)), "nccl") == (1, ())


def test_a_submission_without_calls_uses_a_number() -> None:
    scheduled = an_entry(3, over=False, state="scheduled")
    assert known(a_reply(an_entry(1), scheduled), "nccl") == (3, (2,))
    assert known(a_reply(an_entry(1), an_entry(3)), "nccl") == (None, ())


def test_messages_do_not_count_as_calls_of_their_group() -> None:
    message = an_entry(1, over=False, is_p2p=True, record_id=1, p2p_seq_id=7)
    assert known(a_reply(an_entry(1), message), "nccl") == (None, ())
