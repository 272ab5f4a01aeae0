"""The observations of a node: replaced by its agent, aged, bounded, not forged by another agent."""

from watchtower.fleet.nodes import NodeRecord
from watchtower.jobs.agents import NodeObservations
from watchtower.wire.observations import Observation
from watchtower.wire.report import Report

SILENCE_S = 5.0


def a_report(agent_id="a", *names, stopping=False):
    items = tuple(
        Observation(source="kernel_log", subject="node", name=name, age_s=1.0) for name in names
    )
    return Report(
        version=1,
        node="gpu-00",
        agent_id=agent_id,
        interval_s=1.0,
        observations=items,
        stopping=stopping,
    )


def after(*reports):
    """The record of a node after these reports: each with the time at which it came."""
    node = None
    for at, report in reports:
        node = NodeRecord.of(report, node, at, SILENCE_S)
    return node


def names_of(node):
    return [item.name for item in node.observations.items]


def test_a_report_replaces_the_observations():
    node = after((0, a_report("a", "xid.79")), (1, a_report("a", "xid.46")))
    assert names_of(node) == ["xid.46"]


def test_observations_become_older_while_no_report_comes():
    node = after((10, a_report("a", "xid.79")))
    assert node.observations.aged(70)[0].age_s == 61.0


def test_another_agent_with_the_name_of_the_node_adds_and_removes_nothing():
    own, forged = a_report("a", "xid.79"), a_report("b", "xid.46")
    node = after((0, own), (0.5, forged), (1, own), (1.5, forged), (2, a_report("b")))
    assert names_of(node) == ["xid.79"]


def test_a_restarted_agent_takes_over_when_the_first_one_is_silent_or_has_stopped():
    assert names_of(after((0, a_report("a", "old")), (60, a_report("b", "new")))) == ["new"]
    stopped = a_report("a", "old", stopping=True)
    assert names_of(after((0, stopped), (0.1, a_report("b", "new")))) == ["new"]


def test_observations_are_counted_and_can_be_dropped():
    node = after((0, a_report("a", "xid.79")))
    assert node.droppable_bytes > 500
    node.drop(1)
    assert node.observations == NodeObservations()
    assert node.droppable_bytes == 0
