"""`pytest --processes N`: collect once, then run the tests in N copies of this process.

pytest-xdist starts every process anew. Each imports and collects all tests again (3 s of a core
each), and its messages cost as much as a small test. A fork of the process that has collected has
everything. Processes take the next unit of tests from one pipe, and send their reports here.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest

from tests.units import unit_of

NUMBER_BYTES = 4
"""Of a unit's number in the pipe. Reads and writes of so few bytes are never divided."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="run the tests in N processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in several processes, if that was asked for."""
    count: int = session.config.getoption("processes")
    if count < 1 or session.testsfailed or session.config.option.collectonly:
        return None
    units: dict[str, list[int]] = {}
    for index, item in enumerate(session.items):
        units.setdefault(unit_of(item.nodeid), []).append(index)
    Run(session, list(units.values())).run(count)
    return True


class Run:
    """The tests of one session, in the process that distributes them."""

    def __init__(self, session: pytest.Session, units: Sequence[Sequence[int]]) -> None:
        self._session, self._units = session, units
        self._pids: dict[Connection, int] = {}
        self._begun: dict[Connection, int] = {}
        self._unreported = len(session.items)

    def run(self, count: int) -> None:
        """Start the processes and pass on their reports until all have ended."""
        session = self._session
        queue, fill = os.pipe()
        temporary = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        for number in range(count):
            receiver, sender = Pipe(duplex=False)
            pid = os.fork()
            if pid == 0:
                os.close(fill)
                folder = temporary / f"process-{number}"
                folder.mkdir()
                session.config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
                Worker(session, self._units, queue, sender).work()
            sender.close()
            self._pids[receiver] = pid
        os.close(queue)
        try:
            self._fill(fill)
            self._receive()
            self._interrupt()
        finally:  # a terminal interrupts all processes, this one and its copies
            self._wait()
        if self._unreported:
            session.shouldfail = f"{self._unreported} tests did not run"
        if session.shouldfail:
            raise session.Failed(session.shouldfail)

    def _fill(self, pipe: int) -> None:
        with os.fdopen(pipe, "wb") as stream:
            for number in range(len(self._units)):
                stream.write(number.to_bytes(NUMBER_BYTES, "little"))

    def _receive(self) -> None:
        connections = list(self._pids)
        while connections and not self._session.shouldfail:
            for connection in wait(connections):
                assert isinstance(connection, Connection)
                try:
                    self._take(connection, connection.recv())
                except EOFError:
                    connections.remove(connection)
                    self._reap(connection)

    def _take(self, connection: Connection, message: int | list[dict[str, Any]]) -> None:
        if isinstance(message, int):
            self._begun[connection] = message
            return
        del self._begun[connection]
        self._unreported -= 1
        hook = self._session.config.hook
        for data in message:
            report = hook.pytest_report_from_serializable(config=self._session.config, data=data)
            hook.pytest_runtest_logreport(report=report)

    def _reap(self, connection: Connection) -> None:
        """Report the test that a process was running when it ended, if it was."""
        _, status = os.waitpid(self._pids.pop(connection), 0)
        if connection in self._begun:
            self._unreported -= 1
            item = self._session.items[self._begun.pop(connection)]
            report = pytest.TestReport(
                nodeid=item.nodeid,
                location=item.location,
                keywords={},
                outcome="failed",
                longrepr=f"its process ended: {os.waitstatus_to_exitcode(status)}",
                when="call",
            )
            self._session.config.hook.pytest_runtest_logreport(report=report)

    def _interrupt(self) -> None:
        """Interrupt the processes that still run, because enough tests have failed."""
        for pid in self._pids.values():
            os.kill(pid, signal.SIGINT)

    def _wait(self) -> None:
        for pid in self._pids.values():
            os.waitpid(pid, 0)


class Worker:
    """A process that runs tests. It never returns to the code of the one that it is a copy of."""

    def __init__(
        self,
        session: pytest.Session,
        units: Sequence[Sequence[int]],
        queue: int,
        sender: Connection,
    ) -> None:
        self._session, self._units, self._queue, self._sender = session, units, queue, sender
        self._reports: list[dict[str, Any]] = []

    def work(self) -> NoReturn:
        """Run units of tests until there are no more, and exit."""
        status = 1
        try:
            self._take_over()
            self._run_all()
            status = 0
        except KeyboardInterrupt:  # the process that distributes says so
            self._tear_down()
        except BaseException:
            traceback.print_exc()
            self._tear_down()
        finally:
            os._exit(status)

    def _tear_down(self) -> None:
        """End what fixtures have started."""
        self._session._setupstate.teardown_exact(None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report until its test has ended."""
        config = self._session.config
        self._reports.append(
            config.hook.pytest_report_to_serializable(config=config, report=report)
        )

    def _take_over(self) -> None:
        """Print nothing, and capture what tests print in files of this process alone."""
        plugins = self._session.config.pluginmanager
        plugins.unregister(name="terminalreporter")
        plugins.register(self)
        capture = plugins.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()

    def _run_all(self) -> None:
        """The next test has to be known before a test ends: fixtures that both use stay."""
        items = self._session.items
        indices = self._take_indices()
        index = next(indices, None)
        while index is not None:
            following = next(indices, None)
            self._sender.send(index)
            item, next_item = items[index], None if following is None else items[following]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
            self._sender.send(self._reports)
            self._reports.clear()
            index = following

    def _take_indices(self) -> Iterator[int]:
        while number := os.read(self._queue, NUMBER_BYTES):
            yield from self._units[int.from_bytes(number, "little")]
