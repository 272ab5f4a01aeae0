"""Causes, doubts and advice fit together."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import a_rank, picture_of, ranks_in, with_rank
from tests.diagnosis.named import ADVICE, DOUBTS
from tests.diagnosis.strategies import FAULTS
from watchtower import diagnosis
from watchtower.diagnosis.accusation import (
    CANDIDATE,
    MAX_CONFIDENCE,
    MIN_CONFIDENCE,
    STACK_MISSING,
    Accusation,
    Reason,
    Tier,
    weigh,
)
from watchtower.diagnosis.blame_table import ACTIONS as ADVISED_ACTIONS
from watchtower.diagnosis.causes import CAUSES, SLOW_CAUSES
from watchtower.diagnosis.causes.behind_collective import PAIR
from watchtower.diagnosis.elsewhere import LEADS
from watchtower.evidence.gpus import NVML_ACTIONS, RECOVERY_ACTIONS
from watchtower.service.xid_table import ACTIONS
from watchtower.wire.verdict import Cause

SOURCES = "".join(path.read_text("utf-8") for path in Path(diagnosis.__file__).parent.rglob("*.py"))
MENTIONS = Counter(re.findall(r"\w+", SOURCES))
IMPORTS = Counter(re.findall(r"import (\w+)\n", SOURCES))


@pytest.mark.parametrize("name", DOUBTS)
def test_every_doubt_limits_or_halves_and_has_its_name_as_kind(name):
    doubt = DOUBTS[name]
    assert doubt.halves or 0 < doubt.ceiling < 1
    assert doubt.kind == name.lower()


@pytest.mark.parametrize("name", [*DOUBTS, *sorted(set(ADVICE) - ACTIONS)])
def test_every_doubt_and_every_advice_is_given_by_some_cause(name):
    assert MENTIONS[name] > 1 + IMPORTS[name]


def test_a_doubt_that_leaves_candidates_is_below_what_a_verdict_needs():
    assert CANDIDATE < MIN_CONFIDENCE
    assert all(d.ceiling == CANDIDATE or d.ceiling > MIN_CONFIDENCE for d in DOUBTS.values())


def test_every_action_of_a_gpu_error_has_advice():
    assert {*RECOVERY_ACTIONS.values(), *NVML_ACTIONS.values()} <= ACTIONS == set(ADVISED_ACTIONS)


def test_every_doubt_and_every_advice_has_a_sentence_of_its_own():
    assert len({doubt.text for doubt in DOUBTS.values()}) == len(DOUBTS)
    assert len(set(ADVICE.values())) == len(ADVICE)


@pytest.mark.parametrize("name", DOUBTS)
def test_a_doubt_completes_its_line_without_a_name_that_is_not_given(name):
    sentence = DOUBTS[name].text
    assert re.fullmatch(r"[a-z{].{10,110}[^.]", sentence)
    assert sentence.format(suspects="rank 1", unseen="rank 2")


class TestLimits:
    def limits(self, weight, *found):
        reasons = (Reason("startup", weight, (), "no rank has finished set-up yet"),)
        accused = Accusation(
            cause=Cause.INIT_STUCK, tier=Tier.NEVER_CAME, reasons=reasons, doubts=found
        )
        return [doubt.kind for doubt in accused.limits]

    def test_the_lowest_ceiling_is_first_and_none_twice(self):
        found = (STACK_MISSING, PAIR, PAIR)
        assert self.limits(0.9, *found) == ["pair", "stack_missing"]

    def test_a_ceiling_that_the_reasons_do_not_reach_limits_nothing(self):
        assert self.limits(0.7, STACK_MISSING) == []

    def test_a_contradiction_is_a_limit_too(self):
        assert self.limits(0.9, LEADS, STACK_MISSING) == ["leads"]


def some(family, weight):
    return family, weight


def test_two_families_are_surer_than_one():
    assert weigh([some("stacks", 0.5), some("kernel", 0.5)]) == 0.75


def test_repeating_a_family_adds_nothing():
    assert weigh([some("stacks", 0.5), some("stacks", 0.4)]) == 0.5


def test_a_contradiction_halves():
    assert weigh([some("stacks", 0.8)], [LEADS]) == 0.4


def test_a_ceiling_caps():
    assert weigh([some("stacks", 0.9)], [STACK_MISSING]) == STACK_MISSING.ceiling


def test_no_evidence_is_no_confidence():
    assert weigh([]) == 0


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 1)), max_size=20))
def test_confidence_grows_with_evidence_and_is_never_certain(weights):
    evidence = [some(source, weight) for source, weight in weights]
    assert 0 <= weigh(evidence[1:]) <= weigh(evidence) <= MAX_CONFIDENCE


def test_every_cause_has_one_entry():
    causes = [entry.cause for entry in (*CAUSES, *SLOW_CAUSES)]
    assert len(causes) == len(set(causes))
    assert not {Cause.UNKNOWN, Cause.JOB_SLOW}.intersection(causes)


def test_causes_stand_in_the_order_of_their_tiers():
    faults = {**FAULTS, "never_started": None, "init_stuck": None}
    tiers = []
    for cause, find, *_ in CAUSES:
        if faults.get(cause.value) is None:
            continue
        built = with_rank(ranks_in(8), faults[cause.value](3))
        finding = find(picture_of(built))
        assert finding.cause is cause
        tiers.append(finding.tier)
    assert tiers == sorted(tiers)


def test_no_cause_accuses_anybody_of_a_job_in_its_collective():
    built = [*ranks_in(7), a_rank(7)]
    found = {cause: find(picture_of(built)) for cause, find, *_ in CAUSES}
    found = {cause: finding.suspects for cause, finding in found.items() if finding}
    assert found == {Cause.SYMMETRIC_HANG: ()}
