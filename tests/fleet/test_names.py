"""Jobs that their agents call after a program keep one name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fleet.launch_scenes import A1, A2, CONFIRMED, USER, A, B, Sim, processes
from tests.fleet.test_fleet_bounds import dumps
from watchtower.fleet.fleet import Fleet
from watchtower.policy import Policy


@pytest.fixture
def sim() -> Sim:
    return Sim(Fleet(Policy()))


ANOTHER = "llama on n0 (alice, 05:31)"


def test_a_restarted_agent_that_calls_a_job_otherwise_leaves_it_its_name(sim):
    """The program has written a title over its command line, from which the name was made."""
    sim.run(A, seconds=3)
    renamed = replace(A, name=ANOTHER)
    report = replace(sim.make_report(renamed), agent_id="restarted")
    for _ in range(CONFIRMED):
        sim.now += 1.0
        sim.fleet.take_report(report, sim.now)
    assert sim.jobs() == {"mine": processes(A)}
    assert sim.fleet.jobs["mine"].attempt.number == 1
    assert sim.fleet.placing.find_label("n0", ANOTHER, USER, A.id) == "mine"


def test_a_rank_that_names_its_job_at_run_time_leaves_the_job_without_a_name(sim):
    sim.run(A, seconds=3)
    sim.run(replace(A, name="named by its heartbeat file"), seconds=3)
    assert "named by its heartbeat file" in sim.jobs()


def test_the_name_stays_after_a_restart_of_tower_and_agent(sim):
    sim.run(A, A1, A2, seconds=3)
    past = {name: job.attempt.remember(job.owner) for name, job in sim.fleet.jobs.items()}
    again = Sim(Fleet(Policy()))
    again.fleet.recall(past, {})
    renamed = replace(A, name=ANOTHER)
    again.run(renamed)
    assert set(again.jobs()) == {"mine"}
    batch = replace(dumps(ANOTHER, 0, 1, node="n0", name=A.id), owner=USER, launch=A.id)
    assert again.fleet.placing.find_label_of_dumps(batch) == "mine"


def test_two_jobs_with_the_name_of_a_program_have_numbers(sim):
    alike = [replace(each, name="train.py on n0 (alice, 05:31)") for each in (A, B)]
    sim.run(*alike, seconds=CONFIRMED)
    name = "train.py on n0 (alice, 05:31)"
    assert sim.jobs() == {name: processes(A), f"{name}~2": processes(B)}
