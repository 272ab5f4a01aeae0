"""`watchtower run -- COMMAND`: runs a training command, and writes the verdict into its own log.

The command runs as it would without: its output, its input and its exit code are its own, and a
tower that does not answer changes nothing. Only with --end-when-hung is it ended, after a while,
with an exit code that a scheduler can tell from a fault of the program.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from watchtower.commands.asking import verdict_of
from watchtower.commands.client import ClientError, NotFoundError, TowerClient
from watchtower.commands.contexts import add_tower, make_client
from watchtower.commands.options import duration
from watchtower.commands.printing import clean, clean_lines
from watchtower.service.command_line import Parser, name_or_id
from watchtower.service.interpreter import with_parent

HUNG_CODE = 86
"""Exit code of a job that was ended because it hung. Programs, shells, Python and torchrun do not
use it: for JobSet's podFailurePolicy, and for scripts that requeue."""

EVERY_S = 30.0
"""Seconds between two questions. 2,048 nodes ask 70 times a second together."""

CHECK_S = 0.2
"""Seconds between two checks whether the command still runs."""

GRACE_S = 30.0
"""Seconds that the command has to end by itself after SIGTERM: as many as Slurm and Kubernetes
give."""

TIMEOUT_S = 5.0
"""Seconds for one answer. The end of the command is noticed later by as long."""

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that schedulers and people send: the command gets them."""

PREFIX = "[watchtower] "
SIGNALLED = 128
"""Added to the number of the signal that ended the command, as shells do."""

JOB, SLURM = "WATCHTOWER_JOB", "SLURM_JOB_ID"


def add_run(parser: Parser) -> None:
    """Add the options of `run`."""
    add = parser.add_argument
    add("--job", type=name_or_id, help=f"name of the job (default: ${JOB}, or ${SLURM})")
    add(
        "--end-when-hung",
        type=duration,
        metavar="TIME",
        help=f"end the command, and exit with {HUNG_CODE}, when the job has been hung for so long "
        "(default: never)",
    )
    add(
        "--every",
        type=duration,
        default=EVERY_S,
        metavar="TIME",
        help="time from one question to the next (default 30s)",
    )
    add_tower(parser)
    add("command", nargs="+", metavar="COMMAND", help="the command and its arguments, after --")
    parser.set_defaults(run=run)


class Watch:
    """What is known of the verdict, and when the job is to be ended."""

    def __init__(self, client: TowerClient, job: str, end_after_s: float | None) -> None:
        self._client, self._job, self._end_after_s = client, job, end_after_s
        self._shown = self._trouble = ""
        self._hung_since: tuple[str, float] | None = None
        """The incident, and when it was first seen here: no clock of another machine is used."""

    def ask(self, now: float) -> bool:
        """Ask once, and write what is new. Return whether the job is to be ended."""
        try:
            verdict = verdict_of(self._client, self._job)
            self._write(verdict)
        except NotFoundError:
            return False  # no agent has seen its ranks yet
        except ClientError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                say(f"no verdicts at present: {clean(self._trouble)}")
            return False
        self._trouble = ""
        return self._is_over(verdict, now)

    def _write(self, verdict: dict[str, Any]) -> None:
        is_hung = verdict["status"] == "hung"
        news = f"{verdict.get('incident')} {verdict.get('summary')}" if is_hung else ""
        if news and news != self._shown:
            say(clean_lines(self._client.verdict_text(str(verdict["job"])).rstrip()))
        elif self._shown and not news:
            say(f"the job is {clean(verdict['status'])}")
        self._shown = news

    def _is_over(self, verdict: dict[str, Any], now: float) -> bool:
        incident = str(verdict.get("incident") or "")
        if verdict["status"] != "hung" or not incident:
            self._hung_since = None
            return False
        if self._hung_since is None or self._hung_since[0] != incident:
            self._hung_since = incident, now
        waited_s = now - self._hung_since[1]
        if self._end_after_s is None or waited_s < self._end_after_s:
            return False
        say(f"ended: hung for {waited_s:.0f} s, incident {clean(incident)}; exit code {HUNG_CODE}")
        return True


def say(text: str) -> None:
    """Write lines to standard error, where the job's own log is."""
    lines = "\n".join(PREFIX + line for line in text.split("\n"))
    with contextlib.suppress(OSError):
        print(lines, file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code, or `HUNG_CODE`."""
    environment = dict(os.environ)
    job = args.job or environment.get(JOB) or environment.get(SLURM)
    if not job:
        job = environment[JOB] = f"run-{os.uname().nodename}-{os.getpid()}"
    if shutil.which(args.command[0]) is None:
        raise ClientError(f"cannot run {args.command[0]!r}: there is no such program")
    watch = Watch(make_client(args, TIMEOUT_S), job, args.end_when_hung)
    command = [*with_parent(signal.SIGTERM), *args.command]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    with passing_on(process):
        ask_at = time.monotonic() + args.every
        while process.poll() is None:
            time.sleep(CHECK_S)
            if time.monotonic() < ask_at:
                continue
            ask_at = time.monotonic() + args.every
            if watch.ask(time.monotonic()) and process.poll() is None:
                end(process)
                return HUNG_CODE
    code = process.returncode
    return code if code >= 0 else SIGNALLED - code


def end(process: subprocess.Popen[bytes]) -> None:
    """End the command and all processes of its session, which is its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)


@contextlib.contextmanager
def passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals on to the command."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    before = {each: signal.signal(each, pass_on) for each in PASSED_ON}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
