"""`watchtower up`: a tower and an agent for the jobs of this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import FrameType

from watchtower.access.tower_address import DEFAULT_PORT
from watchtower.commands.client import DONE, TROUBLE, UNUSABLE
from watchtower.service.command_line import Parser
from watchtower.service.interpreter import module_command, with_parent

END_PATIENCE_S = 10.0
"""Seconds for a part to end. Both promise 5 s; a unit of systemd waits as long as this."""

CHECK_S = 0.2
"""Seconds between two checks whether both parts still run."""


def add_up(parser: Parser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        help="port of the tower, 0 for a free one (default %(default)s)",
    )
    parser.add_argument(
        "--data-dir",
        default="watchtower-data",
        metavar="DIR",
        help="folder of the incidents (default %(default)s)",
    )
    parser.set_defaults(run=up)


class _Stopped(Exception):
    """The command was asked to end, by Ctrl-C or SIGTERM."""


def up(args: argparse.Namespace) -> int:
    """Run both until Ctrl-C or SIGTERM; returns the exit code."""
    try:
        with _stoppable():
            return _run(args)
    except _Stopped:
        return DONE


def _run(args: argparse.Namespace) -> int:
    words = ("serve", "--port", str(args.port), "--data-dir", args.data_dir)
    with _started("watchtower", *words) as tower:
        url = (tower.stdout.readline() if tower.stdout else b"").decode("utf-8", "replace").strip()
        if not url:
            return tower.wait() or UNUSABLE  # it has printed why
        # /metrics on a free port: an agent that is a service here has the usual one.
        with _started("agent", "run", "--tower", url, "--port", "0") as agent:
            print(url, flush=True)
            print("The jobs of this machine are watched until Ctrl-C.", flush=True)
            while tower.poll() is None and agent.poll() is None:
                time.sleep(CHECK_S)
            ended = "agent" if tower.poll() is None else "tower"
            print(f"watchtower: the {ended} has ended", file=sys.stderr)
            return TROUBLE


@contextlib.contextmanager
def _started(module: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start one part, in a session of its own: Ctrl-C is ours. On leaving it ends."""
    with subprocess.Popen(
        [*with_parent(signal.SIGTERM), *module_command(module, *words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if module == "watchtower" else None,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(END_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM leave the block once. A second Ctrl-C changes nothing."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
