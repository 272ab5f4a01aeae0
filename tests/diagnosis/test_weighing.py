from hypothesis import given
from hypothesis import strategies as st

from watchtower.diagnosis.accusation import MAX_CONFIDENCE, STACK_MISSING, weigh
from watchtower.diagnosis.elsewhere import LEADS


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
