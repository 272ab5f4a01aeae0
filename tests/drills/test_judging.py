"""Right or wrong: a verdict against what was injected."""

from dataclasses import replace

import pytest

from watchtower.drills.judging import Answer, is_final, judge, names_cause, suspect_ranks
from watchtower.drills.setup import CALM, Expected, names

STALL = names("dataloader_stall", domain="data")
STRAGGLER = Expected(cause="straggler", statuses=("slow",))


def a_verdict(cause="dataloader_stall", ranks=(3,), status="hung", **more):
    suspects = [{"rank": rank, "node": "drill-a", "cause": cause} for rank in ranks]
    return {"cause": cause, "domain": "data", "status": status, "suspects": suspects, **more}


def an_answer(verdict=None, seen=("healthy",), incidents=(), complaints=(), after_s=None):
    return Answer(
        verdict=verdict,
        statuses_seen=tuple(seen),
        incidents=tuple(incidents),
        complaints=tuple(complaints),
        fault_to_verdict_s=after_s,
    )


def judged(verdict, expected=STALL, ranks=(3,), **more):
    judgement = judge(expected, ranks, an_answer(verdict, **more))
    return judgement.right_rank, judgement.right_cause


@pytest.mark.parametrize("status", ["hung", "ended"])
def test_the_injected_rank_and_cause_in_a_final_verdict_are_right(status):
    assert judged(a_verdict(status=status)) == (True, True)


def test_another_rank_is_wrong_though_the_cause_is_right():
    assert judged(a_verdict(ranks=(4,))) == (False, True)


def test_an_innocent_rank_beside_the_right_one_is_wrong():
    assert judged(a_verdict(ranks=(3, 4))) == (False, True)


def test_another_cause_is_wrong_though_the_rank_is_right():
    assert judged(a_verdict(cause="busy_loop")) == (True, False)


def test_a_fault_may_have_several_right_causes():
    alike = Expected(cause="symmetric_hang", or_causes=("unknown",), statuses=("hung",))
    for cause in ("symmetric_hang", "unknown"):
        assert judged(a_verdict(cause=cause, ranks=()), alike, ranks=()) == (True, True)
    assert judged(a_verdict(cause="busy_loop", ranks=()), alike, ranks=()) == (True, False)


def test_another_domain_is_wrong_if_the_drill_expects_one():
    assert judged(a_verdict(domain="storage")) == (True, False)
    slow = a_verdict(cause="straggler", status="slow", domain="storage")
    assert judged(slow, STRAGGLER) == (True, True)


def test_a_verdict_may_have_a_deadline():
    early = replace(STALL, within_s=20.0)
    assert judged(a_verdict(), early, after_s=19.9) == (True, True)
    assert judged(a_verdict(), early, after_s=20.1) == (True, False)


def test_a_suspicion_that_never_became_an_incident_is_not_right():
    assert judged(a_verdict(status="suspect")) == (True, False)


def test_no_verdict_at_all_is_wrong():
    assert judged(None) == (False, False)


def test_the_type_of_an_exception_must_be_told():
    expected = names("exception", "ValueError", domain="data")
    silent = a_verdict(cause="exception", summary="rank 3 raised")
    telling = a_verdict(cause="exception", summary="rank 3 raised ValueError: truncated")
    assert judged(silent, expected) == (True, False)
    assert judged(telling, expected) == (True, True)


@pytest.mark.parametrize(("told", "is_right"), [("pid 120", False), ("pid 12, stopped", True)])
def test_a_pid_is_mentioned_as_a_whole_word(told, is_right):
    verdict = a_verdict(evidence=[{"text": told}])
    assert judged(verdict, names("dataloader_stall", "12", domain="data"))[1] is is_right


def test_all_ranks_of_a_lost_node_have_to_be_named():
    lost = a_verdict(cause="node_lost", ranks=(0, 1))
    assert judged(lost, names("node_lost", domain="data"), ranks=(0, 1)) == (True, True)
    assert judged(lost, names("node_lost", domain="data"), ranks=(0, 1, 2)) == (False, True)


def test_where_nobody_is_to_blame_naming_a_rank_is_wrong():
    expected = names("symmetric_hang", domain="data")
    assert judged(a_verdict(cause="symmetric_hang", ranks=()), expected, ()) == (True, True)
    assert judged(a_verdict(cause="symmetric_hang"), expected, ()) == (False, True)


def test_a_straggler_is_named_by_a_status_and_pages_nobody():
    slow = a_verdict(cause="straggler", status="slow")
    assert judged(slow, STRAGGLER) == (True, True)
    assert judged(slow, STRAGGLER, incidents=["rank 3 hangs"]) == (True, False)
    assert judged(a_verdict(cause="straggler"), STRAGGLER) == (True, False)
    assert judged(a_verdict(cause="job_slow", status="slow"), STRAGGLER) == (True, False)


def test_what_the_drill_saw_go_wrong_makes_a_right_verdict_wrong():
    assert judged(a_verdict(), complaints=["2 incidents for one hang"]) == (True, False)
    assert not healthy("healthy", complaints=["a rank was traced"]).is_right


def test_every_wrong_answer_comes_with_a_reason():
    judgement = judge(STALL, (3,), an_answer(a_verdict(cause="busy_loop", ranks=())))
    assert judgement.reasons == (
        "accused no rank, expected rank 3",
        "cause busy_loop, expected dataloader_stall",
    )


def healthy(status, expected=None, **more):
    answer = an_answer({"status": status, "cause": None}, **more)
    return judge(expected or Expected(), (), answer)


@pytest.mark.parametrize("status", CALM)
def test_a_calm_job_without_incidents_is_right(status):
    assert healthy(status).is_right


def test_a_passing_suspect_is_not_held_against_the_tower():
    assert healthy("healthy", seen=["healthy", "suspect", "healthy"]).is_right


def test_one_incident_on_a_healthy_job_is_wrong():
    assert not healthy("recovered", incidents=["rank 3 hangs"]).is_right


def test_a_job_left_under_suspicion_is_wrong():
    assert not healthy("suspect").is_right


def test_a_status_that_had_to_be_seen_on_the_way_is_asked_for():
    expected = Expected(passes="monitoring_lost")
    assert not healthy("healthy", expected).is_right
    assert healthy("healthy", expected, seen=["healthy", "monitoring_lost"]).is_right


def test_unknown_names_no_cause():
    assert not names_cause(a_verdict(cause="unknown"))
    assert not names_cause(a_verdict(cause=None, status="healthy"))
    assert names_cause(a_verdict(status="suspect"))


def test_a_job_that_ended_well_has_no_final_verdict():
    assert not is_final({"status": "ended", "cause": None})
    assert is_final(a_verdict(status="ended"))


def test_suspects_are_read_in_order_from_whatever_comes():
    assert suspect_ranks(a_verdict(ranks=(5, 2))) == (2, 5)
    assert suspect_ranks({"suspects": None}) == ()
    assert suspect_ranks(None) == ()
