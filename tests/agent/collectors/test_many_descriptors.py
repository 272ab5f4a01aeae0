"""A process with very many descriptors or descendants costs the agent a bounded number of reads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

from agent.collectors import traffic
from agent.collectors.traffic import MAX_LINKS, TREE_PROCESSES, TcpBytes, TrafficMeter
from agent.procfs import Proc
from agent.ranks.process_table import Process


class Endless:
    """A folder of descriptors, or a list of descendants, without an end."""

    def __init__(self) -> None:
        self.read = 0

    def entries(self) -> Iterator[SimpleNamespace]:
        for number in count():
            self.read += 1
            assert self.read <= 2 * MAX_LINKS, "it is read without a limit"
            yield SimpleNamespace(name=str(number))


class Links(Proc):
    def link(self, pid: int, name: str) -> str:
        return "net:[1]" if name == "ns/net" else "socket:[7]"


def meter(process: Process) -> TrafficMeter:
    return TrafficMeter(proc=Links(), process=process, tcp=TcpBytes(), interval_s=1.0)


def a_process(pid: int = 1) -> Process:
    return Process(pid=pid, ppid=0, start_time=1, comm="x")


def test_only_the_first_descriptors_of_a_process_are_read(monkeypatch):
    folder = Endless()

    @contextlib.contextmanager
    def scan(_: str) -> Iterator[Iterator[SimpleNamespace]]:
        yield folder.entries()

    monkeypatch.setattr(os, "scandir", scan)
    monkeypatch.setattr(os, "listdir", lambda _: [each.name for each in folder.entries()])
    monkeypatch.setattr(traffic, "read_tcp_bytes", lambda: {7: 5})
    traffic_meter = meter(a_process())
    assert traffic_meter.measure(late_s=10.0) == 0.0
    assert folder.read <= MAX_LINKS + 1


def test_only_the_first_descendants_of_a_process_are_visited(monkeypatch):
    visited = Endless()

    class Forking(Process):
        def descendants(self) -> Iterator[Process]:
            return (a_process(2) for _ in visited.entries())

    monkeypatch.setattr(traffic, "read_tcp_bytes", dict)
    root = Forking(pid=1, ppid=0, start_time=1, comm="x")
    monkeypatch.setattr(os, "scandir", lambda _: contextlib.nullcontext(iter(())))
    monkeypatch.setattr(os, "listdir", lambda _: [])
    meter(root).measure(late_s=10.0)
    assert visited.read < TREE_PROCESSES
