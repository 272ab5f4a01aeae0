"""Every series of an agent names its node; what the agent cannot do is a series."""

from __future__ import annotations

from dataclasses import fields

from prometheus_client.core import Metric

from agent.delivery.dump_queue import DumpLoss
from agent.metrics import Metrics
from watchtower.wire.report import AgentGaps


def families(metrics: Metrics) -> dict[str, Metric]:
    return {family.name: family for family in metrics.registry.collect()}


def test_every_series_names_the_node():
    metrics = Metrics("gpu-042")
    metrics.count_dump("ok")
    metrics.count_loss(DumpLoss.FULL)
    metrics.tick_duration.observe(0.001)
    samples = [sample for family in families(metrics).values() for sample in family.samples]
    assert {sample.labels["node"] for sample in samples} == {"gpu-042"}
    names = {sample.name for sample in samples}
    assert {"process_cpu_seconds_total", "watchtower_agent_dumps_total"} <= names
    assert len({(s.name, *sorted(s.labels.items())) for s in samples}) == len(samples)


def test_the_limits_of_an_agent_are_series_and_end_with_their_reason():
    metrics = Metrics("gpu-042")
    sources = {field.name for field in fields(AgentGaps)}

    def limited() -> set[str]:
        samples = families(metrics)["watchtower_agent_limited"].samples
        assert {sample.labels["source"] for sample in samples} == sources
        return {sample.labels["source"] for sample in samples if sample.value}

    assert limited() == set()
    metrics.show_limits(AgentGaps(python_stacks="py-spy is missing", owners="unknown"))
    assert limited() == {"python_stacks", "owners"}
    metrics.show_limits(AgentGaps())
    assert limited() == set()


def test_an_agent_describes_itself():
    (sample,) = families(Metrics("gpu-042"))["watchtower_agent_info"].samples
    assert sample.name == "watchtower_agent_info"
    assert sample.labels.keys() == {"node", "version", "python_version", "kernel"}
    assert sample.value == 1
