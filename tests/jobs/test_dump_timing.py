"""Decisions about when dumps of many ranks are taken and diagnosed."""

from itertools import pairwise

import pytest

from agent.dumps.triggers import ROUND_GAP_JITTERS, ROUND_GAP_S, SATISFIED_BY_S
from tests.jobs.story import a_diagnosis
from watchtower.jobs.dump_timing import (
    DIAGNOSE_EVERY_S,
    DIAGNOSE_GAP_S,
    DUMP_WAIT_S,
    MAX_JITTER_S,
    SECOND_DUMP,
    DiagnosisTiming,
    RepeatedDumps,
    jitter_s,
)
from watchtower.jobs.stall_context import StallContext
from watchtower.wire.verdict import Cause


def context(have, want=8):
    return StallContext(dumps_have=have, dumps_want=want, evidence=(float(have),))


def is_due(timing, have, now, *, want=8, is_death=False, is_diagnosed=False):
    return timing.is_due(context(have, want), is_death=is_death, is_diagnosed=is_diagnosed, now=now)


@pytest.mark.parametrize(
    ("ranks", "seconds"), [(8, 0.0), (255, 0.0), (256, 0.256), (2048, 2.0), (131_072, 2.0)]
)
def test_only_dumps_of_large_jobs_are_spread(ranks, seconds):
    assert jitter_s(ranks) == seconds


def test_the_first_diagnosis_begins_when_every_rank_is_dumped():
    timing = DiagnosisTiming(100.0)
    assert not is_due(timing, 7, 101.0)
    assert is_due(timing, 8, 101.0)


def test_a_rank_that_is_not_dumped_delays_it_no_longer_than_the_jitter_and_a_round():
    assert is_due(DiagnosisTiming(100.0), 7, 100.0 + DUMP_WAIT_S)
    late = DiagnosisTiming(100.0)
    assert not is_due(late, 7, 100.0 + DUMP_WAIT_S, want=16_384)
    assert is_due(late, 7, 100.0 + DUMP_WAIT_S + MAX_JITTER_S, want=16_384)


def test_a_death_does_not_wait_for_dumps():
    assert is_due(DiagnosisTiming(100.0), 0, 100.0, is_death=True)


def test_dumps_that_come_in_meanwhile_are_diagnosed_together():
    timing = DiagnosisTiming(100.0)
    assert is_due(timing, 0, 100.0, is_death=True)
    assert not is_due(timing, 3, 100.1, is_death=True)
    assert is_due(timing, 5, 100.1 + DIAGNOSE_GAP_S, is_death=True)


def test_the_more_ranks_the_longer_dumps_are_gathered():
    timing = DiagnosisTiming(100.0)
    assert is_due(timing, 16_384, 103.0, want=16_384)
    assert not is_due(timing, 16_385, 104.0, want=16_384)
    assert is_due(timing, 16_385, 105.1, want=16_384)


LACKS_LOGS = a_diagnosis(Cause.UNKNOWN, unlogged=(1,))
NAMES_NONE = a_diagnosis(Cause.UNKNOWN, suspects=())
AGAIN = "nothing decides yet"


@pytest.mark.parametrize(
    ("diagnosis", "ranks", "patience_s", "expected"),
    [
        (a_diagnosis(), 8, 15.0, {9.0: "second dump"}),
        (a_diagnosis(), 8, 2.0, {2.0: "second dump"}),
        (LACKS_LOGS, 8, 12.0, {4.0: AGAIN, 9.0: AGAIN}),
        (NAMES_NONE, 8, 15.0, {4.0: AGAIN, 9.0: AGAIN}),
        (NAMES_NONE, 8, 18.0, {4.0: AGAIN, 9.0: AGAIN, 14.0: "second dump"}),
        (
            NAMES_NONE,
            8,
            70.0,
            {4.0: AGAIN, 9.0: AGAIN, 16.0: AGAIN, 32.0: AGAIN, 42.0: "second dump", 64.0: AGAIN},
        ),
        (LACKS_LOGS, 16_384, 20.0, {4.0: AGAIN, 15.0: AGAIN}),
    ],
)
def test_every_dump_that_is_ordered_again_is_taken(diagnosis, ranks, patience_s, expected):
    dumps = RepeatedDumps()
    found = {}
    for waited_s in map(float, range(int(patience_s) + 1)):
        for each in dumps.take_due(diagnosis, ranks, waited_s, patience_s):
            found[waited_s] = each.reason
    assert found == expected
    assert max(found) >= SECOND_DUMP * patience_s, "the incident opens with recent stacks"
    dump_s = ROUND_GAP_S + ROUND_GAP_JITTERS * jitter_s(ranks)
    assert all(after - before > dump_s + SATISFIED_BY_S for before, after in pairwise(found))


def test_a_diagnosis_is_repeated_while_nothing_changes():
    timing = DiagnosisTiming(100.0)
    assert is_due(timing, 8, 101.0)
    assert not is_due(timing, 8, 101.0 + DIAGNOSE_EVERY_S, is_diagnosed=False)
    assert not is_due(timing, 8, 100.9 + DIAGNOSE_EVERY_S, is_diagnosed=True)
    assert is_due(timing, 8, 101.0 + DIAGNOSE_EVERY_S, is_diagnosed=True)


def test_dumps_need_no_check_while_others_are_missing():
    timing = DiagnosisTiming(100.0)
    assert not timing.may_be_due(16_384, 1, is_death=False, now=101.0)
    assert timing.may_be_due(16_384, 0, is_death=False, now=101.0)
    assert timing.may_be_due(16_384, 1, is_death=True, now=101.0)
    assert timing.may_be_due(16_384, 1, is_death=False, now=100.0 + DUMP_WAIT_S + MAX_JITTER_S)


def test_dumps_need_no_check_shortly_after_a_diagnosis_was_requested():
    timing = DiagnosisTiming(100.0)
    assert is_due(timing, 8, 101.0)
    assert not timing.may_be_due(8, 0, is_death=False, now=101.1)
    assert timing.may_be_due(8, 0, is_death=False, now=101.1 + DIAGNOSE_GAP_S)
