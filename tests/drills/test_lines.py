"""The output of a drill: one line for each change, nothing a terminal would obey."""

import io
from dataclasses import replace

import pytest

from watchtower.drills.catalogue import find_drill
from watchtower.drills.display import clock_text
from watchtower.drills.judging import Judgement
from watchtower.drills.plain import PlainDisplay
from watchtower.drills.result import Result
from watchtower.drills.text import (
    clean,
    opening,
    outcome_lines,
    rank_words,
    settings_line,
    verdict_lines,
)
from watchtower.drills.watch import Observed, note_verdict

HEALTHY = {"status": "healthy", "cause": None, "suspects": []}
HUNG = {
    "status": "hung",
    "cause": "dataloader_stall",
    "confidence": 0.94,
    "summary": "rank 3 waits for a batch",
    "suspects": [{"rank": 3, "node": "drill-a", "pid": 4711, "where": "data.py:88 in __next__"}],
    "evidence": [{"source": "stacks", "text": "7 ranks wait in all_reduce"}],
    "missing_evidence": ["no collective records"],
    "next_steps": ["look at the storage"],
    "diagnosed_at": "2026-11-20T10:00:00.000Z",
}


def an_observed_job(**more):
    return Observed(job="drill-1", started_at=0.0, **more)


def a_result(observed, **judgement):
    return Result(
        drill=find_drill("dataloader_sleep"),
        backend="stdlib",
        ranks=(3,),
        observed=observed,
        judgement=Judgement(**judgement),
        settings_changed={},
    )


def shown(*observations):
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for observed in observations:
        display.show(observed)
    return stream.getvalue().splitlines()


def test_a_change_is_told_once():
    observed = an_observed_job(fault_at=0.0, verdict=HEALTHY, statuses=["healthy"])
    lines = shown(observed, observed, observed)
    assert len(lines) == 1
    assert lines[0].endswith("healthy: no problem detected")


def test_status_verdict_dumps_and_incident_each_get_a_line():
    observed = an_observed_job(
        fault_at=0.0,
        verdict=HUNG,
        statuses=["hung"],
        view={"dumps": {"have": 3, "want": 8}},
        incidents=[{"id": "01J"}],
    )
    words = [line.partition("] ")[2] for line in shown(observed)]
    assert words == [
        "hung: an incident is open, so alert rules fire",
        "verdict dataloader_stall: rank 3 (drill-a, pid 4711) at data.py:88 in __next__",
        "dumps 3 of 8",
        "incident 01J",
    ]


def test_lines_count_the_seconds_since_the_fault():
    assert clock_text(an_observed_job(), now=12.34) == "  12.3 s"
    assert clock_text(an_observed_job(fault_at=10.0), now=12.34) == "fault   +2.3 s"
    assert clock_text(an_observed_job(fault_at=10.0), now=112.34) == "fault +102.3 s"


def test_text_from_a_job_cannot_command_the_terminal():
    assert clean("\x1b[2Jgone\r\nback\x07") == "[2Jgone back"
    assert len(clean("x" * 10_000)) == 400


def test_the_verdict_is_told_with_code_line_evidence_and_next_step():
    assert verdict_lines(HUNG) == [
        "hung: dataloader_stall, rank 3 (drill-a, pid 4711) at data.py:88 in __next__"
        " (94 % confidence)",
        "rank 3 waits for a batch",
        "evidence (stacks): 7 ranks wait in all_reduce",
        "missing: no collective records",
        "next: look at the storage",
    ]


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        ({"phase": "", "state": "S"}, ""),
        ({"phase": "eval", "state": "T"}, "eval stopped"),
        ({"state": "X", "ended": {"kind": "exit", "code": 3}}, "exit code 3"),
        ({"ended": {"kind": "exit", "code": 1, "exception_type": "ValueError"}}, "ValueError"),
        ({"ended": {"kind": "signal", "code": 9}}, "signal 9"),
        ({"ended": {"kind": "unknown", "code": None}}, "ended"),
    ],
)
def test_a_rank_gets_a_word_where_it_is_out_of_the_ordinary(rank, words):
    assert rank_words(rank) == words


def test_an_empty_verdict_still_makes_lines():
    assert verdict_lines({})[0] == "no verdict: no cause, no suspect (0 % confidence)"


def test_times_run_from_the_fault_to_the_first_named_cause_and_to_the_incident():
    observed = an_observed_job(fault_at=100.0)
    note_verdict(observed, HEALTHY, 101.0)
    note_verdict(observed, {**HUNG, "status": "suspect", "cause": "unknown"}, 105.0)
    note_verdict(observed, {**HUNG, "status": "suspect"}, 107.25)
    note_verdict(observed, HUNG, 117.0)
    assert observed.statuses == ["healthy", "suspect", "hung"]
    assert (observed.fault_to_verdict_s, observed.fault_to_hung_s) == (7.25, 17.0)
    assert observed.final_since == 117.0


def test_a_verdict_before_the_fault_does_not_count():
    observed = an_observed_job()
    note_verdict(observed, HUNG, 5.0)
    assert observed.named_at is None


def test_a_final_verdict_that_changes_its_mind_has_to_wait_again():
    observed = an_observed_job(fault_at=0.0)
    note_verdict(observed, HUNG, 1.0)
    note_verdict(observed, {**HUNG, "status": "recovered"}, 2.0)
    note_verdict(observed, HUNG, 3.0)
    assert observed.final_since == 3.0


def test_the_outcome_says_right_or_what_would_have_been():
    observed = an_observed_job(fault_at=0.0, named_at=7.0, hung_at=17.0, verdict=HUNG)
    right = outcome_lines(a_result(observed, right_rank=True, right_cause=True))
    wrong = outcome_lines(a_result(observed, right_rank=False, right_cause=True, reasons=("no",)))
    assert right[0] == "fault to verdict: 7.0 s, to the incident: 17.0 s"
    assert right[1] == "RIGHT: the fault was in rank 3, cause dataloader_stall."
    assert wrong[1] == "WRONG: no"


def test_the_json_object_has_exactly_the_promised_keys():
    observed = an_observed_job(fault_at=0.0, named_at=7.0, hung_at=17.0, verdict=HUNG)
    assert a_result(observed, right_rank=True, right_cause=True).to_json() == {
        "drill": "dataloader_sleep",
        "backend": "stdlib",
        "injected": {"ranks": [3], "cause": "dataloader_stall"},
        "verdict": HUNG,
        "fault_to_verdict_s": 7.0,
        "fault_to_hung_s": 17.0,
        "settings_changed": {},
        "right_rank": True,
        "right_cause": True,
    }


def test_the_opening_does_not_name_the_rank():
    lines = opening(find_drill("dataloader_sleep"), 8, 2, "stdlib")
    assert len(lines) == 2
    assert "rank 3" not in " ".join(lines)
    assert settings_line({}) is None
    assert "drill.step_s = 0.2" in str(settings_line({"drill.step_s": 0.2}))


def test_the_outcome_of_a_fault_without_a_culprit():
    result = replace(
        a_result(an_observed_job(), right_rank=True, right_cause=True),
        drill=find_drill("symmetric"),
        ranks=(),
    )
    assert outcome_lines(result) == ["RIGHT: no rank caused it, cause symmetric_hang."]
