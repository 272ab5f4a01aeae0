"""Every series of an agent names its node; what the agent cannot do is a series."""

from __future__ import annotations

import socket
from dataclasses import fields
from urllib.request import urlopen

import pytest
from prometheus_client.core import Metric

from agent import metrics as served
from agent.delivery.dump_queue import DumpLoss
from agent.metrics import Metrics
from tests.waiting import wait_until
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


def can_scrape(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return b"watchtower_agent_info" in answer.read()
    except OSError:
        return False


def connect(url: str, count: int) -> list[socket.socket]:
    port = int(url.split(":")[2].partition("/")[0])
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]


def test_silent_clients_end_by_themselves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(served._Handler, "timeout", 0.2)
    url = Metrics("gpu-042").serve("127.0.0.1", 0)
    clients = connect(url, 3 * served.MAX_REQUESTS)
    for client in clients:
        client.settimeout(5)
        assert client.recv(1) == b""
        client.close()
    wait_until(lambda: can_scrape(url), "it answers again")


def test_requests_over_the_limit_are_closed_until_the_old_ones_make_room(
    monkeypatch: pytest.MonkeyPatch,
):
    url = Metrics("gpu-042").serve("127.0.0.1", 0)
    assert can_scrape(url)
    silent = connect(url, served.MAX_REQUESTS)
    assert not can_scrape(url)
    monkeypatch.setattr(served, "REQUEST_S", 0.0)
    wait_until(lambda: can_scrape(url), "it answers again")
    for client in silent:
        client.close()
