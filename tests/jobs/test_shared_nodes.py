"""Two jobs whose ranks share nodes: the evidence of one job contains nothing of the other."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import as_sent, case_of
from tests.properties import examples
from tests.synthesis.faults import FAULTS, imagine
from tests.synthesis.layout import Layout
from tests.synthesis.messages import launch, write_batches, write_reports
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Case
from watchtower.fleet.fleet import Fleet
from watchtower.jobs.case_inputs import collect_case_inputs
from watchtower.jobs.condition import Stall, Why
from watchtower.jobs.detector import Detector
from watchtower.policy import Policy

ONE, OTHER = Layout(tensor=2, data=4), Layout(data=3, pipeline=3)
STOPS = [fault for fault in FAULTS if fault.spoil is None]
NOW = 1000.0


def collect(cases: list[Case], order: random.Random) -> dict[str, Case]:
    """Send the agents' messages to a fleet in this order. Returns the case of each job."""
    policy = Policy()
    fleet, detector = Fleet(policy), Detector(policy)
    for report in write_reports(cases):
        fleet.take_report(report, NOW)
    batches = [
        batch for case in cases for number in (1, 2) for batch in write_batches(case, number)
    ]
    order.shuffle(batches)
    for batch in batches:
        fleet.take_dumps(as_sent(batch), NOW + 1.0)
    made = {}
    for name, job in fleet.jobs.items():
        stall = Stall(why=Why.OVERDUE, since=NOW - 9.0, ranks=frozenset())
        gen = job.generation
        made[name] = case_of(
            collect_case_inputs(gen, fleet.nodes, detector, stall, None, NOW + 1.0)
        )
    return made


@examples(30)
@given(st.sampled_from(STOPS), st.sampled_from(STOPS), st.integers(0, 7), st.integers(0, 2**32))
def test_a_case_is_the_same_whether_or_not_another_job_shares_its_nodes(one, other, rank, seed):
    first = launch(imagine(ONE, one, rank).case, "one", 1000)
    second = launch(imagine(OTHER, other, rank).case, "other", 5000)
    order = random.Random(seed)
    together = collect([first, second], order)
    assert together["one"] == collect([first], order)["one"]
    assert together["other"] == collect([second], order)["other"]


@examples(30)
@given(st.sampled_from(STOPS), st.sampled_from(STOPS), st.integers(0, 7), st.integers(0, 2**32))
def test_each_of_two_jobs_gets_a_verdict_on_its_own_fault(one, other, rank, seed):
    truths = {"one": imagine(ONE, one, rank), "other": imagine(OTHER, other, rank)}
    cases = [
        launch(truth.case, job, pids)
        for (job, truth), pids in zip(truths.items(), (1000, 5000), strict=True)
    ]
    for job, case in collect(cases, random.Random(seed)).items():
        diagnosis = diagnose(case)
        assert [suspect.rank for suspect in diagnosis.suspects] == [rank]
        assert diagnosis.cause.value in truths[job].causes


def test_what_the_agents_send_gives_the_case_they_were_imagined_from():
    case = launch(imagine(ONE, FAULTS[0], 5).case, "one", 1000)
    made = collect([case], random.Random(0))["one"]
    assert {stack.digest for stack in made.stacks} == {stack.digest for stack in case.stacks}
    assert {log.digest for log in made.group_logs} == {log.digest for log in case.group_logs}
    assert set(made.groups) == set(case.groups)
    assert [item.dumps for item in made.ranks] == [item.dumps for item in case.ranks]
    aged = [replace(item, beat=case.ranks[0].beat) for item in made.ranks]
    assert aged == list(case.ranks)
