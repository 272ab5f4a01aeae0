"""The agent's metrics for Prometheus. CPU and memory come from the client library."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from socket import AF_INET6, SHUT_RDWR, socket
from socketserver import ThreadingMixIn
from threading import Lock, Thread
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    make_wsgi_app,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from agent import __version__
from agent import metric_table as table
from agent.delivery.dump_queue import DumpLoss
from watchtower.service.metric_spec import MetricSpec, Sample
from watchtower.wire.report import AgentGaps

log = logging.getLogger(__name__)

_Kind = TypeVar("_Kind", Gauge, Counter)

TICK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""A tick takes 1 to 2 ms. From 5 ms on it exceeds the budget at one tick per second."""

WAKE_S = 3600.0
"""Seconds after which the server of `/metrics` wakes up without a request. It is never told to end;
the half second that is usual would be two thirds of all wakeups of the agent."""

MAX_REQUESTS = 8
"""Requests that are answered at once: two Prometheus servers, a person, and some to spare. Each has
a thread, and further ones are closed at once."""

SILENT_S = 5.0
"""Seconds that a client may send or receive nothing. Prometheus sends its request at once."""

REQUEST_S = 15.0
"""Seconds after which a request must make room for others. A scrape takes some milliseconds, and
Prometheus stops after 10 s unless it is told otherwise. A client that sends one byte every second
is never silent."""


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each request in a thread of its own. One that hangs does not keep the agent alive."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lock = Lock()
        self._open: dict[socket, float] = {}
        """When each request began."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a request; close it if there are too many."""
        now = time.monotonic()
        with self._lock:
            is_full = len(self._open) >= MAX_REQUESTS
            if not is_full:
                self._open[request] = now
            late = [each for each, at in self._open.items() if is_full and now - at > REQUEST_S]
            for each in late:
                with contextlib.suppress(OSError):
                    each.shutdown(SHUT_RDWR)  # its thread closes it, which makes room
        if is_full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a request."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log one line: clients that are silent or go away are ordinary."""
        log.debug("a request for metrics failed: %s", sys.exc_info()[1])


class _Server6(_Server):
    address_family = AF_INET6


class _Handler(WSGIRequestHandler):
    """Writes no line for each request."""

    timeout = SILENT_S

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


class _OfNode(Collector):
    """The series of a registry, with the label `node` on each of them."""

    def __init__(self, registry: CollectorRegistry, node: str) -> None:
        self._registry, self._node = registry, node

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [
                sample._replace(labels={"node": self._node, **sample.labels})
                for sample in family.samples
            ]
            yield family


class _OfCollectors(Collector):
    """The series of the agent's collectors, as of its last report."""

    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for sample in self._read():
            spec = sample.spec
            if spec.name not in families:
                name = spec.name.removesuffix("_total")
                families[spec.name] = Metric(name, spec.help, spec.kind.value)
            labels = dict(zip(spec.labels, sample.labels, strict=True))
            if sample.le:
                labels["le"] = sample.le
            families[spec.name].add_sample(spec.name + sample.part, labels, sample.value)
        yield from families.values()


class Metrics:
    """Everything in `/metrics`, in a registry of its own."""

    def __init__(self, node: str) -> None:
        """`node` is the name under which this agent reports."""
        self.registry, self._own = CollectorRegistry(), CollectorRegistry()
        self.registry.register(_OfNode(self._own, node))
        ProcessCollector(registry=self._own)
        self.ranks = self._make(Gauge, table.RANKS)
        self.report_failures = self._make(Counter, table.REPORT_FAILURES)
        self.dumps = self._make(Counter, table.DUMPS)
        self._dumps_waiting = self._make(Gauge, table.DUMPS_WAITING)
        self._dumps_dropped = self._make(Counter, table.DUMPS_DROPPED)
        for loss in DumpLoss:
            self._dumps_dropped.labels(reason=loss.value)
        self.tick_duration = Histogram(
            table.TICK_DURATION.name,
            table.TICK_DURATION.help,
            buckets=TICK_BUCKETS_S,
            registry=self._own,
        )
        self._limited = self._make(Gauge, table.LIMITED)
        self.show_limits(AgentGaps())
        self._make(Gauge, table.BUILD_INFO).labels(version=__version__).set(1)
        self._make(Gauge, table.INFO).labels(
            version=__version__, python_version=platform.python_version(), kernel=os.uname().release
        ).set(1)

    def _make(self, kind: type[_Kind], spec: MetricSpec) -> _Kind:
        return kind(spec.name, spec.help, spec.labels, registry=self._own)

    def count_dump(self, outcome: str) -> None:
        """Count one dumped rank."""
        self.dumps.labels(outcome=outcome).inc()

    def count_loss(self, loss: DumpLoss) -> None:
        """Count one lost batch of dumps."""
        self._dumps_dropped.labels(reason=loss.value).inc()

    def show_limits(self, gaps: AgentGaps) -> None:
        """Set what the agent cannot do on this node."""
        for field in fields(gaps):
            self._limited.labels(source=field.name).set(bool(getattr(gaps, field.name)))

    def show_waiting(self, count: Callable[[], int]) -> None:
        """Set the function that returns how many batches wait. It is called at each scrape."""
        self._dumps_waiting.set_function(count)

    def show_samples(self, read: Callable[[], Iterable[Sample]]) -> None:
        """Set the function that returns the series of the collectors. Any thread may call it."""
        self._own.register(_OfCollectors(read))

    def serve(self, host: str, port: int) -> str:
        """Serve `/metrics` and return its URL; "" if the port is in use. The agent runs in both
        cases.
        """
        try:
            kind, app = _Server6 if ":" in host else _Server, make_wsgi_app(self.registry)
            server = make_server(host, port, app, kind, _Handler)
        except OSError as error:
            log.warning("no metrics: cannot listen on %s:%d: %s", host, port, error.strerror)
            return ""
        Thread(target=server.serve_forever, args=(WAKE_S,), name="metrics", daemon=True).start()
        return f"http://{host}:{server.server_port}/metrics"
