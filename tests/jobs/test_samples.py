"""Samples of ranks without heartbeats: which agree, which changed, and how many are needed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_USER_CODE,
    POLLS,
    a_kernel,
    a_native,
    a_stack,
)
from watchtower.jobs.samples import MAX_RUN_S, MAX_SAMPLES, RunKind, Samples
from watchtower.wire.collectives import PeerTransfers, RankCollectives
from watchtower.wire.dumps import DumpFailure, FailureKind, RankDump, Setting, ThreadDump

RANKS = {0, 1}
FAILED = DumpFailure(kind=FailureKind.TORN, help_text="")


def a_dump(rank: int, stack: str, *, state: str = "S", pid: int = 10, **values) -> RankDump:
    main = ThreadDump(name="MainThread", digest=a_stack(stack).digest, main=True)
    threads = (main,) if stack else ()
    return RankDump(
        rank=rank, pid=pid, start_time=1, kernel=a_kernel(state), threads=threads, **values
    )


def sample(samples: Samples, at: float, *stacks: str, **values) -> float:
    """Add a sample of ranks 0, 1 ... with these stacks. Returns for how long samples agree."""
    samples.begin(RANKS, 20.0, at)
    dumps = [a_dump(rank, stack, **values) for rank, stack in enumerate(stacks)]
    samples.take(dumps, [a_stack(stack) for stack in stacks if stack], at)
    return samples.agreed_s(RANKS)


def sampled(*sequence: tuple[str, str]) -> Samples:
    samples = Samples()
    for number, stacks in enumerate(sequence):
        sample(samples, 20.0 * number, *stacks)
    return samples


SAME = (IN_ALL_REDUCE, FETCHING)
OTHER = (IN_ALL_REDUCE, IN_USER_CODE)


def test_samples_without_a_change_agree():
    samples = Samples()
    assert [sample(samples, 20.0 * n, *SAME) for n in range(4)] == [0, 20, 40, 60]
    assert samples.since == 0.0


def test_a_change_of_one_rank_resets_the_count():
    samples = sampled(SAME, SAME, SAME)
    assert sample(samples, 60.0, *OTHER) == 0
    assert samples.since == 60.0
    assert samples.changed_since(1, 50.0)
    assert not samples.changed_since(0, 50.0)


def test_who_listens_where_the_job_meets_waits_for_no_client():
    """Such a rank 0 counted as a server, and its job as idle, while another rank hung in set-up."""
    kernel = a_kernel("S", "accept4", "tcp 10.0.0.1:29500 listening")
    dump = replace(a_dump(0, IN_USER_CODE), kernel=kernel)
    for settings, waits in (
        ((), True),
        ((Setting(name="MASTER_PORT", value="8000"),), True),
        ((Setting(name="MASTER_PORT", value="29500"),), False),
    ):
        samples = Samples()
        samples.take([replace(dump, settings=settings)], [a_stack(IN_USER_CODE)], 5.0)
        assert samples.activity_of(0).waits_for_client is waits


def test_the_first_position_is_not_a_change():
    samples = sampled(SAME)
    assert not samples.changed_since(0, -1.0)
    assert not samples.changed_since(7, -1.0)


def test_a_sample_without_a_dump_of_every_rank_does_not_count():
    samples = sampled(SAME, SAME)
    assert sample(samples, 40.0, IN_ALL_REDUCE) == 20
    assert sample(samples, 60.0, *SAME) == 40


def test_a_failed_dump_is_not_a_sample_unless_the_rank_is_held():
    samples = sampled(SAME)
    assert sample(samples, 20.0, *SAME, failure=FAILED) == 0
    assert sample(samples, 40.0, "", "", failure=FAILED, state="D") == 20


@pytest.mark.parametrize(
    "records",
    [RankCollectives(logs=("b",)), RankCollectives(logs=("a",), peers=(PeerTransfers(peer=1),))],
)
def test_collectives_and_transfers_that_change_are_progress_at_the_same_line(records):
    samples = sampled()
    sample(samples, 0.0, *SAME, collectives=RankCollectives(logs=("a",)))
    assert sample(samples, 20.0, *SAME, collectives=RankCollectives(logs=("a",))) == 20
    assert sample(samples, 40.0, *SAME, collectives=records) == 0


def test_a_log_that_is_not_read_now_and_then_is_no_change():
    samples = Samples()
    unread = RankCollectives(failure="It gave no answer.")
    found = [RankCollectives(logs=("a",)), unread, RankCollectives(logs=("a",)), None]
    for number, records in enumerate(found):
        assert sample(samples, 20.0 * number, *SAME, collectives=records) == 20.0 * number
    moved = RankCollectives(logs=("b",))
    assert sample(samples, 80.0, *SAME, collectives=moved) == 0, "compared with the last one read"


def test_a_rank_that_stays_in_state_d_is_still():
    samples = Samples()
    sample(samples, 0.0, *SAME, state="D")
    assert not samples.is_still(0)
    sample(samples, 20.0, *SAME, state="D")
    assert samples.is_still(0)
    sample(samples, 40.0, *SAME, state="S")
    assert not samples.is_still(0)


def test_several_samples_without_any_stack_are_blind():
    samples = Samples()
    for number in range(3):
        sample(samples, 20.0 * number, *SAME, failure=FAILED)
        assert not samples.is_blind
    sample(samples, 60.0, *SAME, failure=FAILED)
    assert samples.is_blind
    sample(samples, 80.0, *SAME)
    assert not samples.is_blind


def test_another_process_is_another_sample():
    samples = sampled(SAME, SAME)
    assert sample(samples, 40.0, *SAME, pid=11) == 0


def test_a_rank_that_comes_later_begins_the_count_anew():
    samples = Samples()
    for number in range(3):
        samples.begin({0}, 20.0, 20.0 * number)
        samples.take([a_dump(0, FETCHING)], [a_stack(FETCHING)], 20.0 * number)
    assert samples.agreed_s({0}) == 40
    assert sample(samples, 60.0, FETCHING, FETCHING) == 0


def test_a_dump_that_arrives_late_is_skipped():
    samples = sampled(SAME, SAME)
    samples.take([a_dump(1, IN_USER_CODE)], [a_stack(IN_USER_CODE)], 5.0)
    assert samples.agreed_s(RANKS) == 20


def test_the_more_samples_agree_by_chance_the_more_are_needed():
    assert Samples().needed_by_chance() == 10
    assert sampled(*[SAME, OTHER] * 20).needed_by_chance() == 2
    often = sampled(*([SAME] * 9 + [OTHER]) * 10)
    assert 20 < often.needed_by_chance() < 50
    assert often.longest_s() == 180
    assert sampled(*([SAME] * 300 + [OTHER])).longest_s() == MAX_RUN_S


def test_the_longest_run_without_movement_is_recorded_separately():
    samples = sampled(SAME, SAME, SAME, SAME)
    samples.note_still(40)
    sample(samples, 80.0, *OTHER)
    assert (samples.longest_s(RunKind.STILL), samples.longest_s()) == (60, 80)


def test_runs_in_which_a_rank_ran_code_are_counted_separately():
    samples = Samples()
    for number in range(40):  # waits agree by chance, three samples at a time
        sample(samples, 20.0 * number, *(OTHER if number % 4 == 3 else SAME), native=POLLS)
    assert samples.needed_by_chance(RunKind.CODE) == 3
    assert samples.needed_by_chance() > 6
    assert (samples.longest_s(RunKind.CODE), samples.longest_s()) == (0, 60)
    for number, stacks in enumerate([SAME, SAME, SAME, SAME, OTHER]):
        sample(samples, 800.0 + 20 * number, *stacks, native=RUNS_PYTHON)
    assert samples.needed_by_chance(RunKind.CODE) == 4
    assert samples.longest_s(RunKind.CODE) == 80


@given(st.lists(st.sampled_from([SAME, OTHER]), max_size=40))
def test_as_many_samples_agree_as_are_alike_at_the_end(sequence):
    samples = sampled(*sequence)
    alike = 0
    for stacks in reversed(sequence):
        if stacks != sequence[-1]:
            break
        alike += 1
    assert samples.agreed_s(RANKS) == 20 * max(0, alike - 1)
    assert 2 <= samples.needed_by_chance() <= MAX_SAMPLES


RUNS_PYTHON = a_native("python", running=True)
BLOCKED = a_native("python", run_ns=5_000_000, switches=80)


@pytest.mark.parametrize(
    ("natives", "is_still"),
    [
        ((BLOCKED, BLOCKED), True),
        ((BLOCKED, replace(BLOCKED, switches=81)), True),
        ((BLOCKED, replace(BLOCKED, run_ns=900_000_000)), True),
        ((BLOCKED, replace(BLOCKED, run_ns=1_100_000_000)), False),
        ((BLOCKED,), False),
        ((None, BLOCKED), False),
        ((BLOCKED, None), False),
        ((None, POLLS), True),
        ((POLLS, None), False),
    ],
)
def test_a_rank_is_still_if_its_thread_hardly_runs_or_polls_for_its_device(natives, is_still):
    samples = Samples()
    for number, native in enumerate(natives):
        sample(samples, 20.0 * number, *SAME, native=native)
    assert samples.is_still(0) is is_still
    assert not samples.is_still(7)


def test_a_thread_that_runs_at_the_same_line_keeps_its_place_while_none_is_sampled():
    samples = Samples()
    sample(samples, 0.0, *SAME, native=POLLS)
    sample(samples, 20.0, *SAME, native=None, state="R")
    assert samples.is_still(0)
    sample(samples, 40.0, *OTHER, native=None, state="R")
    assert (samples.is_still(0), samples.is_still(1)) == (True, False)


def test_a_thread_that_went_elsewhere_did_not_stay_blocked():
    samples = Samples()
    sample(samples, 0.0, *SAME, native=BLOCKED)
    sample(samples, 20.0, *OTHER, native=BLOCKED)
    assert (samples.is_still(0), samples.is_still(1)) == (True, False)


def test_intervals_of_any_length_add_up():
    samples = Samples()
    for at, agreed_s in [(0.0, 0.0), (30.0, 30.0), (40.0, 40.0), (50.0, 50.0), (80.0, 80.0)]:
        assert sample(samples, at, *SAME) == agreed_s


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_code_in_the_sample_with_a_change_belongs_to_the_run_that_it_begins(order):
    samples = sampled(*[SAME] * 10)
    samples.begin(RANKS, 20.0, 200.0)
    dumps = (a_dump(0, SAME[0], native=RUNS_PYTHON), a_dump(1, OTHER[1]))
    samples.take([dumps[rank] for rank in order], map(a_stack, (*SAME, *OTHER)), 200.0)
    assert (samples.longest_s(), samples.longest_s(RunKind.CODE)) == (200.0, 0.0)
    assert samples.ran_code
