"""A pipeline that sends and receives in one function, in calls into C that no frame names."""

import pytest

from tests.diagnosis.builders import a_case, a_rank, ranks_in, with_rank
from tests.diagnosis.causes.asking import answer_of_case, named
from watchtower.diagnosis.diagnosis import diagnose

STAGE = "stage /home/ann/job/pipe.py:{} < <module> /home/ann/job/pipe.py:13"
RECEIVES, SENDS = STAGE.format(10), STAGE.format(12)
IN_SLOT = f"wait_for_slot /home/ann/job/slots.py:7 < {STAGE.format(11)}"


def pipeline(*others, sends=SENDS, receives=RECEIVES):
    """Ranks 0 and 1 send, rank 3 receives; rank 2 is left to the test."""
    built = with_rank(ranks_in(4, sends, syscall="futex"), a_rank(3, receives, syscall="futex"))
    return a_case(with_rank(built, *others))


def test_the_one_rank_that_is_elsewhere_is_named_and_quoted():
    diagnosis = diagnose(pipeline(a_rank(2, IN_SLOT, syscall="pselect6")))
    assert named(diagnosis) == (
        "behind_collective",
        [2],
    )
    assert (diagnosis.confidence, diagnosis.waiting, diagnosis.alternatives) == (0.6, "0-1,3", ())
    assert diagnosis.suspects[0].where == "slots.py:7 in wait_for_slot"
    assert any(item.text.startswith("rank 2: wait_for_slot") for item in diagnosis.evidence)


@pytest.mark.parametrize("syscall", ["futex", "recvfrom", ""])
def test_not_where_it_may_wait_for_ranks_too(syscall):
    assert answer_of_case(pipeline(a_rank(2, IN_SLOT, syscall=syscall))) == ("unknown", [])


def test_not_where_it_is_on_its_way():
    moves = a_rank(2, IN_SLOT, before=STAGE.format(11), syscall="pselect6")
    assert answer_of_case(pipeline(moves)) == ("unknown", [])


def test_not_where_the_many_are_called_from_elsewhere():
    """One of them may be at a lock that is no part of the pipeline."""
    locked = RECEIVES.replace("<module>", "log_metrics")
    case = pipeline(a_rank(2, IN_SLOT, syscall="pselect6"), receives=locked)
    assert answer_of_case(case)[1] != [2]


def test_no_rank_is_named_where_all_are_in_the_function():
    receives = a_rank(2, RECEIVES, syscall="futex")
    assert answer_of_case(pipeline(receives)) == ("unknown", [])


def test_the_few_at_another_line_of_a_long_pipeline_are_not_named_with_it():
    built = with_rank(ranks_in(8, SENDS, syscall="futex"), a_rank(7, RECEIVES, syscall="futex"))
    case = a_case(with_rank(built, a_rank(6, IN_SLOT, syscall="pselect6")))
    assert answer_of_case(case) == ("behind_collective", [6])


def test_at_one_line_it_is_surer():
    case = pipeline(a_rank(2, IN_SLOT, syscall="pselect6"), receives=SENDS)
    assert diagnose(case).confidence == 0.75
