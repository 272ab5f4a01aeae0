"""What a collective log shows of one call: over, open, or unknown."""

from __future__ import annotations

import pytest

from watchtower.evidence.collective_log import CallLog, Entered, OpenCall, Over
from watchtower.wire.collectives import CollectiveRecord, make_group_log


def a_log(
    called: int,
    completed: int,
    *,
    unknown: tuple[int, ...] | None = (),
    records: tuple[int, ...] = (),
    entered: int | None = None,
) -> CallLog:
    log = make_group_log(
        group="g",
        called=called,
        entered=called if entered is None else entered,
        completed=completed,
        unknown=unknown,
        records=tuple(CollectiveRecord(number=each, operation="all_reduce") for each in records),
    )
    return CallLog(log)


def over(log: CallLog) -> str:
    """Return a letter for each call: over, open or unknown."""
    letters = {Over.YES: "o", Over.NO: "-", Over.UNKNOWN: "?"}
    return "".join(letters[log.is_over(number)] for number in range(1, log.called + 1))


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (a_log(4, 4), "oooo"),
        (a_log(4, 3, unknown=(2, 3), records=(1, 4)), "o??-"),
        (a_log(5, 2, unknown=(), records=(1, 2, 3, 4, 5)), "oo---"),
        (a_log(5, 5, unknown=(2,), records=(1, 2, 3, 4, 5)), "o?ooo"),
        # A full list has the newest only.
        (a_log(12, 12, unknown=tuple(range(4, 11))), "ooo???????oo"),
        (a_log(12, 12, unknown=tuple(range(4, 12))), "???????????o"),
        (a_log(14, 4, unknown=tuple(range(6, 14))), "????-????????-"),
    ],
)
def test_each_call_is_over_open_or_unknown(log: CallLog, expected: str) -> None:
    assert over(log) == expected
    assert log.has_hole == ("?" in expected)


def test_a_call_without_a_record_may_have_been_another_one() -> None:
    log = a_log(4, 3, unknown=(2, 3), records=(1, 4))
    entered = [log.has_entered(number) for number in (1, 2, 4, 5)]
    assert entered == [Entered.YES, Entered.UNKNOWN, Entered.YES, Entered.NO]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (a_log(4, 4), False),
        (a_log(4, 4, unknown=(1, 3)), False),
        (a_log(4, 4, unknown=(3, 4)), True),
        (a_log(4, 3, unknown=(2,)), True),
        (a_log(4, 3), False),
    ],
)
def test_a_rank_waits_in_no_hole_before_a_last_call_that_is_over(
    log: CallLog, expected: bool
) -> None:
    assert log.may_wait_in_hole is expected


@pytest.mark.parametrize(
    ("log", "reached", "expected"),
    [
        (a_log(3, 3), 2, None),
        (a_log(4, 3, records=(3, 4)), 3, OpenCall(4, certain=True)),
        (a_log(4, 3, records=(3, 4)), 4, OpenCall(4, certain=True)),
        # Two open calls: all members have come to the first one.
        (a_log(4, 2, records=(2, 3, 4)), 3, OpenCall(4, certain=True)),
        (a_log(4, 2, records=(2, 3, 4)), 4, OpenCall(3, certain=True)),
        # Queued calls wait for each other.
        (a_log(4, 2, records=(2, 3, 4), entered=2), 3, OpenCall(3, certain=True)),
        # An unknown call counts only if a member has not come to it.
        (a_log(4, 4, unknown=(2,), records=(1, 2, 3, 4)), 1, OpenCall(2, certain=False)),
        (a_log(4, 4, unknown=(2,), records=(1, 2, 3, 4)), 2, None),
    ],
)
def test_a_rank_waits_in_the_call_that_explains_its_wait(
    log: CallLog, reached: int, expected: OpenCall | None
) -> None:
    assert log.find_open_call(reached) == expected


def test_calls_after_one_that_is_not_over_are_not_counted() -> None:
    assert a_log(9, 8, records=(8, 9)).count_over(7) == 2
    assert a_log(9, 8, unknown=(7,), records=(7, 8, 9)).count_over(7) == 0
    assert a_log(9, 8).count_over(9) == 0
