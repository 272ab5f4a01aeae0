"""`watchtower-agent check`: what an agent with these options can do on this node."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from agent import config
from agent.children import ChildRunner
from agent.collectors.node import make_collectors
from agent.delivery.shipping import REPLIES, REPLY_LIMITS, REPORT_PATH
from agent.delivery.spool import Spool
from agent.dumpers.python_stacks import (
    PY_SPY_DEADLINE_S,
    PythonStacks,
    find_py_spy,
)
from agent.gaps import find_gaps, read_ptrace_scope
from agent.procfs import Proc
from agent.ranks.discovery import make_discovery
from watchtower.access.tower_address import TowerAddress
from watchtower.access.tower_connection import TowerConnection, TowerError
from watchtower.wire import PROTOCOL_VERSION
from watchtower.writing.printable import printable

MAX_VERSION = 64
"""Characters shown of a tool's version, which is output of another program."""

COLLECTOR_DEADLINE_S = 3.0
"""Seconds that a collector has for its first read."""

HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The first one has this number on every kernel (PROC_PID_INIT_INO)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was checked. A `limited` finding makes the check fail."""

    what: str
    text: str
    limited: bool = False

    def __str__(self) -> str:
        return f"{'!!' if self.limited else 'ok'}  {self.what}: {self.text}"


def check(settings: config.Settings) -> int:
    """Print one line for each thing that was checked; return 0 if nothing is limited, else 1."""
    findings = list(find_all(settings))
    for finding in findings:
        print(finding)
    return 1 if any(finding.limited for finding in findings) else 0


def find_all(settings: config.Settings) -> Iterator[Finding]:
    """Check everything that the agent needs."""
    if settings.settings_file:
        yield Finding(what="settings", text=f"of the service, from {settings.settings_file}")
    proc = Proc(settings.root)
    py_spy = settings.py_spy or find_py_spy()
    gaps = find_gaps(proc, py_spy)
    yield _finding("ranks", gaps.process, f"of all users, as user {os.getuid()}")
    yield _check_namespace(proc)
    for text in _find_unwatched(proc, settings):
        yield Finding(what="not watched", text=text, limited=True)
    yield _check_stacks(py_spy, gaps.python_stacks)
    yield _finding("native places", gaps.native_places, "running threads can be sampled")
    yield Finding(what="Yama", text=f"kernel.yama.ptrace_scope={read_ptrace_scope(proc)}")
    yield from _check_collectors(settings.root)
    yield _check_spool(settings.spool_dir)
    yield _check_tower(settings)


def _finding(what: str, limit: str, otherwise: str) -> Finding:
    return Finding(what=what, text=limit or otherwise, limited=bool(limit))


def _check_namespace(proc: Proc) -> Finding:
    mine = proc.link(os.getpid(), "ns/pid")
    # With the host's /proc below another root, our own pid is another process there.
    if mine == HOST_PID_NAMESPACE or proc.path != "/proc":
        return Finding(what="processes", text="of the whole node")
    text = "of this container only, unless it runs in the host's pid namespace (hostPID)"
    return Finding(what="processes", text=text)


def _find_unwatched(proc: Proc, settings: config.Settings) -> tuple[str, ...]:
    """Return sentences about processes that seem to be ranks and are not watched."""
    discovery = make_discovery(proc, settings.match)
    discovery.find_all()
    return tuple(each.text for each in discovery.unwatched)


def _check_stacks(py_spy: str, limit: str) -> Finding:
    """Dump ourselves: a py-spy that is blocked, or older than this Python, has a version too."""
    if limit:
        return Finding(what="Python stacks", text=limit, limited=True)
    dump = PythonStacks(ChildRunner(), py_spy).dump(os.getpid())
    text = f"{py_spy}, {_version_of(py_spy)}"
    if dump.threads is None and dump.failure is not None:
        text += f", gives none of this process: {dump.failure.help_text}"
        return Finding(what="Python stacks", text=text, limited=True)
    return Finding(what="Python stacks", text=text)


def _check_collectors(root: str) -> Iterator[Finding]:
    for collector in make_collectors(root):
        deadline = time.monotonic() + COLLECTOR_DEADLINE_S
        while True:
            for _ in collector.collect(time.monotonic()):
                break
            gap = collector.gap()
            is_known = collector.can_read or collector.is_absent or gap
            if is_known or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        collector.stop()
        what = collector.name.replace("_", " ")
        text = gap.partition(": ")[2] if gap else "none on this node"
        text = "is read" if collector.can_read and not gap else text
        yield Finding(what=what, text=text, limited=bool(gap))


def _version_of(py_spy: str) -> str:
    if not py_spy:
        return ""
    try:
        outcome = ChildRunner().run([py_spy, "--version"], PY_SPY_DEADLINE_S)
    except OSError as error:
        return f"which cannot be run: {error.strerror}"
    return printable(outcome.output.decode("utf-8", "replace"), MAX_VERSION) or "no version"


def _check_spool(directory: str) -> Finding:
    if not directory:
        text = "none (--spool-dir): dumps that the tower does not have are lost with the agent"
        return Finding(what="spool", text=text)
    spool = Spool(directory, lambda _: None, lambda _: True)
    if not os.path.lexists(spool.path):  # not made here: it would belong to whoever checks
        return _check_parent(spool.path)
    try:
        spool.open()
        return Finding(what="spool", text=f"{spool.path}, {len(spool.ids())} dumps wait in it")
    except BlockingIOError:
        return Finding(what="spool", text=f"{spool.path} is used by an agent that runs now")
    except OSError as error:
        text = f"{spool.path} cannot be used: {error.strerror}"
        return Finding(what="spool", text=text, limited=True)
    finally:
        spool.close()


def _check_parent(path: str) -> Finding:
    parent = os.path.dirname(path)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    may = os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK)
    text = f"{path} {'can' if may else 'cannot'} be made in {parent}"
    return Finding(what="spool", text=text, limited=not may)


def _check_tower(settings: config.Settings) -> Finding:
    """Ask the tower as a report does, so that certificate, token and its scope are checked, too."""
    text = _refusal_of(settings)
    if text:
        return Finding(what="tower", text=f"{settings.tower} {text}", limited=True)
    how = "with this token" if settings.token else "without a token"
    return Finding(what="tower", text=f"{settings.tower} accepts reports {how}")


def _refusal_of(settings: config.Settings) -> str:
    address = TowerAddress(url=settings.tower, token=settings.token, ca_file=settings.ca_file)
    client = TowerConnection(address, REPLY_LIMITS)
    try:
        reply = REPLIES.decode(client.get(REPORT_PATH))
    except TowerError as error:
        return f"accepts no reports: {error.reason}"
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "does not answer like a watchtower tower"
    finally:
        client.close()
    if reply.version != PROTOCOL_VERSION:
        return f"speaks version {reply.version}, this agent {PROTOCOL_VERSION}: install one release"
    return ""
