"""Runs small training programs as real processes and checks them from outside."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile

from watchtower_heartbeat.launchers import LAUNCHERS
from watchtower_heartbeat.layout import MEMFD_LINK
from watchtower_heartbeat.page import PageView, read_page

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE_S = 120.0
PAUSES = {"training", "evaluating", "saving", "sanity", "validating", "testing", "predicting"}


class Trainer:
    """A program under test: told what to do on stdin, answers line by line on stdout."""

    def __init__(
        self, program: str, environment: dict[str, str], python: str = sys.executable
    ) -> None:
        path = str(PROGRAMS / program)
        self.process = subprocess.Popen(
            [python, path] if program.endswith(".py") else [path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=a_clean_environment() | environment,
        )
        self.pid = self.process.pid
        self._unread = b""

    def line(self) -> str:
        """The next line the program prints; fails when it prints none in time."""
        assert self.process.stdout is not None
        out = self.process.stdout.fileno()
        until = time.monotonic() + DEADLINE_S
        while b"\n" not in self._unread:
            ready, _, _ = select.select([out], [], [], max(0.0, until - time.monotonic()))
            data = os.read(out, 65536) if ready else b""
            assert data, f"no line from {self.process.args!r}, only {self._unread!r}"
            self._unread += data
        first, _, self._unread = self._unread.partition(b"\n")
        return first.decode()

    def send(self, statement: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(statement.encode() + b"\n")
        self.process.stdin.flush()

    def do(self, statement: str) -> None:
        """Run one statement in the program and wait until it is through."""
        self.send(statement)
        assert self.line() == "done"

    def ask(self, expression: str) -> str:
        """The value of an expression in the program, printed on one line."""
        self.send(f"print({expression}, flush=True)")
        answer = self.line()
        assert self.line() == "done"
        return answer

    def end(self, statement: str = "") -> tuple[int, str]:
        """Run a last statement, wait for the end: exit code and everything said on stderr."""
        _, errors = self.process.communicate(
            statement.encode() + b"\n" if statement else b"", timeout=DEADLINE_S
        )
        return self.process.returncode, errors.decode()

    def page(self, pid: int | None = None) -> PageView:
        descriptor = self.open_page(pid)
        try:
            return read_page(descriptor)
        finally:
            os.close(descriptor)

    def open_page(self, pid: int | None = None) -> int:
        (descriptor,) = open_pages(pid or self.pid)
        return descriptor

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


class Framework:
    """A process that has imported a framework, which takes seconds, and forks the ranks of tests.

    It forks one after the other. They share its input and output.
    """

    def __init__(self, modules: list[str]) -> None:
        self.errors = TemporaryFile()  # noqa: SIM115  closed by end()
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "forks_ranks.py"), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=a_clean_environment(),
        )

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()


class ForkedTrainer(Trainer):
    """A program that was forked with its framework."""

    def __init__(self, framework: Framework, program: str, environment: dict[str, str]) -> None:
        self.process = framework.process
        self._unread = b""
        self._errors = framework.errors
        self._errors_begin = os.fstat(self._errors.fileno()).st_size
        self._code: int | None = None
        self.send(json.dumps([str(PROGRAMS / program), a_clean_environment() | environment]))
        self.pid = int(self.line())

    def end(self, statement: str = "") -> tuple[int, str]:
        assert not statement
        self.send("raise SystemExit")
        self._wait()
        assert self._code is not None
        size = os.fstat(self._errors.fileno()).st_size - self._errors_begin
        return self._code, os.pread(self._errors.fileno(), size, self._errors_begin).decode()

    def stop(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def _wait(self) -> None:
        while not (line := self.line()).startswith("ended "):
            pass
        self._code = int(line.partition(" ")[2])


def watch(trainer: Trainer, statement: str) -> list[tuple[str, int, str]]:
    """Run a statement; wherever the program pauses, note the place, and the step and phase shown.

    A program pauses by printing the place and reading a line. Frameworks print much besides.
    """
    seen = []
    trainer.send(statement)
    while (where := trainer.line()) != "done":
        if where in PAUSES:
            view = trainer.page()
            seen.append((where, view.step, view.phase))
            trainer.send("")
    return seen


def a_clean_environment() -> dict[str, str]:
    """Ours, without anything that says which rank we are.

    Unbuffered, a process would write a line in pieces, between those of its children.
    """
    ours = {name for names in LAUNCHERS for name in names} | {"PYTHONUNBUFFERED"}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith("WATCHTOWER_")
    }


def open_pages(pid: int) -> list[int]:
    """Descriptors of the pages that a process holds, opened the way the agent does it."""
    folder = f"/proc/{pid}/fd"
    links = [f"{folder}/{name}" for name in os.listdir(folder)]
    return [os.open(link, os.O_RDONLY) for link in links if is_page(link)]


def is_page(link: str) -> bool:
    try:
        return os.readlink(link) == MEMFD_LINK
    except OSError:
        return False
