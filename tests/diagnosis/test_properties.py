"""Laws of the diagnosis that hold for every case."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis import builders as b
from tests.diagnosis.strategies import FAULTS, WAITS, cases, hung_cases
from tests.properties import examples
from watchtower.diagnosis.accusation import MIN_CONFIDENCE
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.jobs.verdicts import diagnosed_verdict
from watchtower.wire.verdict import Cause, Status
from watchtower.writing.ranksets import parse_ranks
from watchtower.writing.verdict_text import MAX_LINES, render_markdown, render_slack, render_text

slow = examples(200)


def verdict_of(case):
    status = Status.SLOW if case.slowdown > 1 else Status.HUNG
    return diagnosed_verdict(case.job, case.generation, status, diagnose(case), 0.0)


@slow
@given(cases())
def test_any_case_gets_a_sound_verdict_that_can_be_shown(case):
    diagnosis = diagnose(case)
    assert not [gap for gap in diagnosis.missing_evidence if gap.startswith("cause ")]
    assert 0 <= diagnosis.confidence <= 1
    assert (diagnosis.cause is Cause.UNKNOWN) == (diagnosis.confidence < MIN_CONFIDENCE)
    # Of a job that all ranks left, the cause may be known and not who was first.
    is_over = not take_picture(case).live
    assert bool(diagnosis.suspects) == (diagnosis.cause is not Cause.UNKNOWN) or is_over
    suspects = {suspect.rank for suspect in diagnosis.suspects}
    assert not suspects & parse_ranks(diagnosis.waiting)
    assert [item.weight for item in diagnosis.evidence] == sorted(
        (item.weight for item in diagnosis.evidence), reverse=True
    )
    for text in (
        diagnosis.summary,
        *diagnosis.next_steps,
        *(item.text for item in diagnosis.evidence),
    ):
        assert text.isprintable()
    for render in (render_text, render_markdown, render_slack):
        assert 1 <= render(verdict_of(case)).count("\n") <= MAX_LINES


@slow
@given(hung_cases())
def test_the_culprit_is_named_and_nobody_else(hung):
    diagnosis = diagnose(hung.case)
    assert [suspect.rank for suspect in diagnosis.suspects] == [hung.culprit]
    assert diagnosis.peers_waiting


@slow
@given(hung_cases(), st.randoms(use_true_random=False))
def test_renumbering_ranks_renumbers_the_answer(hung, order):
    count = hung.case.world_size
    new = list(range(count))
    order.shuffle(new)
    renumbered = renumber(hung.case, new)
    assert [item.rank for item in diagnose(renumbered).suspects] == [new[hung.culprit]]
    assert diagnose(renumbered).confidence == diagnose(hung.case).confidence


def renumber(case, new):
    ranks = [
        replace(
            item,
            rank=new[item.rank],
            dumps=tuple(replace(dump, rank=new[item.rank]) for dump in item.dumps),
        )
        for item in case.ranks
    ]
    return replace(case, ranks=tuple(sorted(ranks, key=lambda item: item.rank)))


@slow
@given(hung_cases(), st.randoms(use_true_random=False))
def test_missing_dumps_never_make_an_innocent_rank_the_confident_answer(hung, chance):
    count = hung.case.world_size
    lost = chance.sample(range(count), count // 5)
    diagnosis = diagnose(b.without_dumps(hung.case, lost))
    assert {suspect.rank for suspect in diagnosis.suspects} <= {hung.culprit}


@slow
@given(st.integers(5, 16), st.sampled_from(WAITS), st.randoms(use_true_random=False))
def test_without_a_culprit_missing_dumps_accuse_nobody(count, wait, chance):
    stack, syscall = wait
    case = b.a_case(b.ranks_in(count, stack, syscall=syscall))
    diagnosis = diagnose(b.without_dumps(case, chance.sample(range(count), count // 5)))
    assert diagnosis.suspects == ()


def test_every_fault_alone_is_given_its_cause():
    for cause, fault in FAULTS.items():
        rank = random.Random(cause).randrange(8)
        assert diagnose(b.a_case(b.with_rank(b.ranks_in(8), fault(rank)))).cause.value == cause
