"""Live ranks that their agents no longer report."""

from tests.jobs.test_detector import running
from watchtower.jobs.condition import ConditionKind, Why
from watchtower.wire.report import EndingKind


def test_a_rank_that_its_agent_no_longer_reports_is_monitoring_lost_and_has_not_ended():
    world = running()
    world.hidden = {1}
    assert world.step(9).kind is ConditionKind.STEPPING
    condition = world.step(60)
    assert condition.kind is ConditionKind.LOST
    assert condition.reason == "no longer reported by the agent on n0: rank 1"
    assert world.gen.ranks[1].is_live


def test_a_job_of_which_no_rank_is_reported_by_live_agents_has_not_ended():
    world = running()
    world.end(3, EndingKind.SIGNAL, 9)
    world.report(1)
    world.hidden = {0, 1, 2}
    condition = world.report(90)
    assert condition.kind is ConditionKind.LOST
    assert condition.reason == "no longer reported by the agent on n0, n1: ranks 0-2"


def test_a_process_that_is_gone_when_its_agent_comes_back_died():
    world = running()
    del world.ranks[1]
    condition = world.report(15)
    assert condition.kind is ConditionKind.STALLED
    assert condition.stall.why is Why.DEATH
    assert condition.stall.ranks == {1}
