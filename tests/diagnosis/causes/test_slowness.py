"""straggler and job_slow: steps still come, but late."""

from dataclasses import replace
from fractions import Fraction
from math import comb

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_USER_CODE,
    POLLS,
    a_case,
    a_native,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import named
from watchtower.diagnosis.causes.straggler import find_chance
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.wire.observations import Observation
from watchtower.wire.verdict import Domain


def looked(rank, waits, looks=10, stack=IN_ALL_REDUCE, **values):
    return a_rank(rank, stack, looks=looks, waits=waits, **values)


def slow_case(*ranks, slowdown=3.0, **values):
    return a_case(ranks, slowdown=slowdown, stalled_for_s=0.0, typical_step_s=3.1, **values)


def answer_of(*ranks, **values):
    diagnosis = diagnose(slow_case(*ranks, **values))
    return named(diagnosis)


ALIKE = [looked(rank, 6 + rank % 3) for rank in range(8)]
SLOW = looked(5, 0, stack=IN_USER_CODE, cpu=1.0, state="R", syscall="")


def test_the_rank_that_waits_least_sets_the_pace():
    diagnosis = diagnose(slow_case(*with_rank(ALIKE, SLOW)))
    assert named(diagnosis) == ("straggler", [5])
    assert all(
        value in diagnosis.summary
        for value in ("never waited for other ranks in 10 samples", "3.0 times")
    )
    assert diagnosis.suspects[0].where == "loss.py:17 in score"


def throttled(case, rank):
    """Let the GPU of this rank work with reduced clocks."""
    suspect = case.ranks[rank]
    seen = Observation(
        source="nvml",
        subject="pci:0000:3b:00",
        name="gpu_pattern.throttled",
        age_s=1.0,
        text="99% busy, memory 12%, 240 W of 700 W",
        pid=suspect.pid,
    )
    nodes = [
        replace(node, observations=(seen,) if node.node == suspect.node else ())
        for node in case.nodes
    ]
    return replace(case, nodes=tuple(nodes))


def test_where_all_hosts_wait_for_their_gpus_the_slow_gpu_is_the_reason():
    polling = [
        looked(rank, 6 + rank % 3, stack=IN_USER_CODE, native=POLLS, state="R") for rank in range(8)
    ]
    case = slow_case(*polling)
    assert diagnose(case).cause.value == "job_slow"
    diagnosis = diagnose(throttled(case, 5))
    assert named(diagnosis) == ("straggler", [5])
    assert "waits for its GPU as often as the other ranks for theirs, and its GPU works with" in (
        diagnosis.summary
    )


def test_a_rank_that_does_not_wait_for_its_gpu_is_not_named_for_it():
    polling = [
        looked(rank, 6 + rank % 3, stack=IN_USER_CODE, native=POLLS, state="R") for rank in range(8)
    ]
    works = looked(5, 6, stack=IN_USER_CODE, native=a_native("python", running=True), state="R")
    assert diagnose(throttled(slow_case(*with_rank(polling, works)), 5)).cause.value == "job_slow"


def test_a_slow_gpu_is_no_reason_where_ranks_wait_for_each_other_alike():
    assert diagnose(throttled(slow_case(*ALIKE), 5)).cause.value == "job_slow"


def test_a_gpu_with_reduced_clocks_is_the_reason():
    case = slow_case(*with_rank(ALIKE, SLOW))
    plain, throttled_case = diagnose(case), throttled(case, 5)
    diagnosis = diagnose(throttled_case)
    assert [each.rank for each in diagnosis.suspects] == [5]
    assert diagnosis.domain is Domain.GPU
    assert diagnosis.confidence > plain.confidence
    assert "GPU 0000:3b:00" in diagnosis.next_steps[0]
    assert "reduced clocks" in " ".join(each.text for each in diagnosis.evidence)
    bare = tuple(replace(node, observations=()) for node in throttled_case.nodes)
    assert diagnose(replace(throttled_case, nodes=bare)).domain is plain.domain


def diagnose_with_ecc(kind, per_s, age_s=6.0, rank=5):
    case = slow_case(*with_rank(ALIKE, SLOW))
    suspect = case.ranks[5]
    errors = Observation(
        source="nvml",
        subject="pci:0000:3b:00",
        name=f"gpu_ecc.{kind}",
        age_s=age_s,
        value=per_s,
        unit="1/s",
        pid=case.ranks[rank].pid,
    )
    total = Observation(
        source="nvml",
        subject="pci:0000:3b:00",
        name=f"gpu_errors.ecc_{kind}",
        age_s=age_s,
        value=9e9,
        pid=suspect.pid,
    )
    nodes = [
        replace(node, observations=(errors, total) if node.node == suspect.node else ())
        for node in case.nodes
    ]
    return diagnose(replace(case, nodes=tuple(nodes)))


@pytest.mark.parametrize(
    ("kind", "per_s", "words"),
    [
        ("corrected", 17_700.0, "has 17700 corrected errors a second at present"),
        ("uncorrected", 0.1, "has new uncorrected errors at present"),
    ],
)
def test_errors_of_the_gpus_memory_that_rise_now_are_the_reason(kind, per_s, words):
    diagnosis = diagnose_with_ecc(kind, per_s)
    assert ([each.rank for each in diagnosis.suspects], diagnosis.domain) == ([5], Domain.GPU)
    assert f"the memory of GPU 0000:3b:00 {words}" in diagnosis.summary
    assert "check the memory of GPU 0000:3b:00" in diagnosis.next_steps[0]
    assert any(words in each.text and each.weight for each in diagnosis.evidence)


def test_few_errors_of_the_memory_old_ones_and_those_of_another_rank_are_no_reason():
    """The total of the counter is never one."""
    for diagnosis in (
        diagnose_with_ecc("corrected", 99.0),
        diagnose_with_ecc("corrected", 17_700.0, age_s=31.0),
        diagnose_with_ecc("uncorrected", 1.0, age_s=31.0),
    ):
        assert diagnosis.domain is not Domain.GPU
        assert "errors" not in diagnosis.summary
    plain = diagnose(slow_case(*with_rank(ALIKE, SLOW)))
    assert diagnose_with_ecc("corrected", 99.0).confidence == plain.confidence


def test_a_cpu_limit_that_stops_the_rank_is_the_reason():
    case = slow_case(*with_rank(ALIKE, SLOW))
    suspect = case.ranks[5]

    def diagnose_after(age_s, rank=5):
        limit = Observation(
            source="cpu_limit",
            subject=f"pid:{case.ranks[rank].pid}",
            name="cpu_limit",
            age_s=age_s,
            text="its CPU limit (4 CPUs) stopped it in 62% of 100 periods",
            pid=case.ranks[rank].pid,
        )
        nodes = [
            replace(node, observations=(limit,) if node.node == suspect.node else ())
            for node in case.nodes
        ]
        return diagnose(replace(case, nodes=tuple(nodes)))

    diagnosis = diagnose_after(age_s=4.0)
    assert ([each.rank for each in diagnosis.suspects], diagnosis.domain) == ([5], Domain.SCHEDULER)
    assert "stopped it in 62% of 100 periods" in diagnosis.summary
    assert "raise or remove the CPU limit" in diagnosis.next_steps[0]
    assert diagnose_after(age_s=31.0).domain is not Domain.SCHEDULER
    assert diagnose_after(age_s=4.0, rank=4).domain is not Domain.SCHEDULER


def test_a_straggler_that_sleeps_in_its_data_loader_is_one_too():
    assert answer_of(*with_rank(ALIKE, looked(2, 1, stack=FETCHING))) == ("straggler", [2])


def test_what_to_look_at_first_fits_where_the_straggler_was_seen():
    def first_step(rank, **values):
        diagnosis = diagnose(slow_case(*with_rank(ALIKE, looked(rank, 1, **values))))
        assert [suspect.rank for suspect in diagnosis.suspects] == [rank]
        return diagnosis.next_steps[0]

    assert first_step(2, stack=FETCHING) == (
        "check the storage that rank 2 reads from on gpu-00: the rank was at data.py:31 in read"
    )
    assert first_step(2, stack=IN_USER_CODE, cpu=0.0) == (
        "check what rank 2 waits for at loss.py:17 in score on gpu-00: it does not compute there"
    )
    assert "GPU" in first_step(2, stack=IN_USER_CODE, cpu=0.9)
    assert "GPU" in first_step(2)


def test_what_is_counted_is_told_in_plain_words():
    same = [looked(rank, 8) for rank in range(8)]
    alike = diagnose(slow_case(*with_rank(same, SLOW))).evidence
    assert alike[0].text.endswith(" 80%")
    assert all(value in alike[1].text for value in ("3.0 times", "3.1 s", "1 s"))
    unlike = diagnose(slow_case(*with_rank(ALIKE, SLOW))).evidence
    assert unlike[0].text.endswith(" 60% to 80%")


def test_two_stragglers_are_named_together():
    assert answer_of(*with_rank(ALIKE, SLOW, looked(6, 1)))[1] == [5, 6]


def test_everybody_slow_alike_names_nobody():
    assert answer_of(*[looked(rank, 1) for rank in range(8)]) == ("job_slow", [])
    assert answer_of(*ALIKE) == ("job_slow", [])


def test_half_of_the_ranks_cannot_be_stragglers():
    ranks = [looked(rank, 0 if rank < 4 else 8) for rank in range(8)]
    assert answer_of(*ranks) == ("job_slow", [])


def test_few_looks_name_nobody():
    assert answer_of(*[looked(r, 3 * (r != 5), looks=3) for r in range(8)]) == ("job_slow", [])
    assert answer_of(*ranks_in(8)) == ("job_slow", [])


def test_ranks_that_could_not_be_looked_at_may_be_the_slow_ones():
    ranks = with_rank(ALIKE, SLOW, looked(3, 0, looks=0), looked(4, 0, looks=0))
    assert answer_of(*ranks) == ("job_slow", [])
    assert diagnose(slow_case(*ranks)).alternatives[0].suspects == (5,)


def test_of_two_ranks_the_slow_one_is_named_with_doubt():
    pair = diagnose(slow_case(looked(0, 7), looked(1, 0, stack=IN_USER_CODE)))
    assert [s.rank for s in pair.suspects] == [1]
    assert pair.confidence <= 0.7


def test_a_stall_is_not_judged_by_looks():
    assert diagnose(slow_case(*with_rank(ALIKE, SLOW), slowdown=1.0)).cause.value != "straggler"


def test_chance_is_what_the_looks_must_beat():
    six = [looked(rank, 4, looks=6) for rank in range(8)]
    assert answer_of(*with_rank(six, looked(5, 0, looks=6))) == ("straggler", [5])
    assert answer_of(*with_rank(six, looked(5, 1, looks=6))) == ("job_slow", [])
    many = [looked(rank, 4, looks=6) for rank in range(300)]
    assert answer_of(*with_rank(many, looked(5, 0, looks=6))) == ("job_slow", [])


@pytest.mark.parametrize("samples", [4, 6, 16, 40])
@pytest.mark.parametrize("usual", [0.0, 0.05, 0.4, 2 / 3, 0.99, 1.0])
def test_the_chance_is_that_of_the_binomial_distribution(samples, usual):
    share = Fraction(usual)
    for waits in {0, 1, samples // 4, samples}:
        exact = sum(
            comb(samples, n) * share**n * (1 - share) ** (samples - n) for n in range(waits + 1)
        )
        assert find_chance(waits, samples, usual) == pytest.approx(float(exact), rel=1e-9)


def test_the_chance_of_many_samples_is_a_number():
    assert find_chance(1_000, 2_000, 0.5) == pytest.approx(0.5089, abs=1e-4)
    assert find_chance(10_000, 100_000, 0.5) == 0.0


def test_a_rank_with_many_samples_is_named():
    many = [looked(rank, 1_400, looks=2_000) for rank in range(8)]
    assert answer_of(*with_rank(many, looked(5, 300, looks=2_000))) == ("straggler", [5])
