"""Runs checks within a deadline, though each may hang.

A file system, a card or a driver that does not answer holds the thread that asks in the kernel, and
a process ends only with its last thread. So a child runs the checks, each in a thread of its own,
and prints the results as they come. At the deadline it is killed and left behind: what it has not
answered is a result, too.

A health check runs every minute. A check whose thread still hangs in a child of an earlier doctor
is not run again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agent import config
from agent.doctor.active_tests import ActiveTest, list_tests
from agent.doctor.check import Check, Finding, Node, warn
from agent.procfs import parse_stat
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT
from watchtower.wire.checks import MAX_CHECKS, CheckResult
from watchtower.writing.printable import printable

DEADLINE_S = 4.2
"""Seconds until the child is killed. The start of Python takes half a second more."""

NAME = "wtdoctor"
"""Begin of the name of the child's threads. The name of the check follows; a name outlives the
command."""

MAX_COMM = 15
"""Bytes of the name of a thread."""

READ_BYTES = 65536
MAX_OUTPUT_BYTES = 1 << 20
"""Bytes read of the child: some 20 results of 1 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What the doctor found."""

    results: tuple[CheckResult, ...] = ()
    """In the order of the checks."""
    tests: tuple[ActiveTest, ...] = ()


class _Line(msgspec.Struct):
    """One line of the child: the results of a check, or at last the tests."""

    check: str = ""
    results: list[CheckResult] = []
    tests: list[ActiveTest] = []


_DECODER = msgspec.json.Decoder(_Line)


def examine(settings: config.DoctorSettings, checks: Sequence[Check[Any]]) -> Examined:
    """Return the results of the checks, in about five seconds at most."""
    deadline = time.monotonic() + DEADLINE_S
    stuck = find_stuck("/proc")
    runs = [each for each in checks if name_thread(each.name) not in stuck]
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _work(Node(settings, deadline), runs, write_end)
    os.close(write_end)
    lines = list(_read_lines(read_end, deadline))
    os.close(read_end)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, os.WNOHANG)
    answered = {line.check: line.results for line in lines if line.check}
    results: list[CheckResult] = []
    for check in checks:
        pid = stuck.get(name_thread(check.name))
        if check.name not in answered:
            results.append(_make_result(check, _explain_silence(check, pid)))
        results += answered.get(check.name, [])
    return Examined(
        results=tuple(results[:MAX_CHECKS]),
        tests=tuple(test for line in lines for test in line.tests),
    )


def _explain_silence(check: Check[Any], stuck: int | None) -> Finding:
    if stuck is None:
        return check.hangs
    text = f"{check.hangs.text} (pid {stuck} of an earlier doctor still waits for it)"
    return check.hangs._replace(text=text)


def name_thread(check: str) -> str:
    """Return the name of the threads of a check."""
    return f"{NAME}-{check.replace(' ', '')}"[:MAX_COMM]


def find_stuck(proc: str) -> dict[str, int]:
    """Return the names of threads of killed doctors that still hang in the kernel, with the pids.

    The first thread of a process that was killed is a zombie until the last one ends.
    """
    found: dict[str, int] = {}
    for pid in filter(str.isdecimal, os.listdir(proc)):
        try:
            stat = parse_stat(Path(f"{proc}/{pid}/stat").read_bytes())
            if stat is None or not stat.comm.startswith(NAME) or stat.state != "Z":
                continue
            for task in set(os.listdir(f"{proc}/{pid}/task")) - {pid}:
                name = Path(f"{proc}/{pid}/task/{task}/comm").read_text("utf-8").strip()
                found[name] = int(pid)
        except OSError:
            continue
    return found


def _read_lines(fd: int, deadline: float) -> Iterator[_Line]:
    """Yield the lines of the child until it has printed all or the deadline passes."""
    rest, total = b"", 0
    while (left := deadline - time.monotonic()) > 0 and total < MAX_OUTPUT_BYTES:
        if not select.select([fd], [], [], left)[0]:
            return
        part = os.read(fd, READ_BYTES)
        if not part:
            return
        total += len(part)
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):
                yield _DECODER.decode(line)


def _work(node: Node, checks: Sequence[Check[Any]], fd: int) -> None:
    """Run the checks and print their results; never returns. It keeps no output open."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for each in (0, 1, 2):
            os.dup2(nothing, each)
        set_thread_name(NAME)
        threads = [
            threading.Thread(target=_run, args=(node, each, fd), daemon=True) for each in checks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not node.settings.checks:
            _write(fd, _Line(tests=list(list_tests(node.collected()))))
    finally:
        os._exit(0)


def set_thread_name(name: str) -> None:
    """Name this thread. The threads that it starts have the same name before they begin."""
    with contextlib.suppress(OSError):
        path = f"/proc/self/task/{threading.get_native_id()}/comm"
        Path(path).write_text(name, encoding="utf-8")


def _run(node: Node, check: Check[Any], fd: int) -> None:
    set_thread_name(name_thread(check.name))
    try:
        found = check.run(node)
    except Exception as error:  # one check that fails must not take the others with it
        found = [warn(f"this check failed: {type(error).__name__}: {error}", "report this")]
    results = [_make_result(check, each) for each in found]
    _write(fd, _Line(check=check.name, results=results))


def _make_result(check: Check[Any], finding: Finding) -> CheckResult:
    return CheckResult(
        check=check.name[:MAX_NAME],
        state=finding.state,
        text=printable(finding.text, MAX_TEXT),
        fix=printable(finding.fix, MAX_TEXT),
    )


_WRITES = threading.Lock()


def _write(fd: int, line: _Line) -> None:
    data = msgspec.json.encode(line) + b"\n"
    with _WRITES, contextlib.suppress(OSError):
        while data:
            data = data[os.write(fd, data) :]
