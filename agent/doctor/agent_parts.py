"""Checks of the agent: its rights, its tools, its spool and its tower."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from agent.children import ChildRunner
from agent.delivery.shipping import REPLIES, REPLY_LIMITS, REPORT_PATH
from agent.delivery.spool import Spool
from agent.doctor.check import About, Check, Finding, Node, Seen, fail, ok, warn
from agent.dumpers.python_stacks import PY_SPY_DEADLINE_S, PythonStacks, find_py_spy
from agent.gaps import find_gaps, read_ptrace_scope
from agent.ranks.discovery import make_discovery
from watchtower.access.tower_address import TowerAddress
from watchtower.access.tower_connection import TowerError
from watchtower.access.towers import Towers
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.report import AgentGaps
from watchtower.writing.printable import printable

MAX_VERSION = 64
"""Characters shown of a tool's version, which is output of another program."""

HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The first one has this number on every kernel (PROC_PID_INIT_INO)."""

RIGHTS_FIX = "docs/install.md lists what the agent needs, and what is missing without it"


def _limited(limit: str, otherwise: str) -> Iterator[Finding]:
    """Yield what is limited, else what is not. Each limit names what to do."""
    yield warn(limit, RIGHTS_FIX) if limit else ok(otherwise)


def _read_gaps(node: Node) -> AgentGaps:
    return find_gaps(node.proc, node.settings.py_spy or find_py_spy())


def judge_ranks(gaps: AgentGaps) -> Iterator[Finding]:
    """Yield whether ranks of all users can be read."""
    return _limited(gaps.process, f"of all users, as user {os.getuid()}")


def judge_native(gaps: AgentGaps) -> Iterator[Finding]:
    """Yield whether running threads can be sampled (perf)."""
    return _limited(gaps.native_places, "running threads can be sampled")


def read_namespace(node: Node) -> bool:
    """Return whether we see the processes of the whole node."""
    # With the host's /proc below another root, our own pid is another process there.
    return node.proc.link(os.getpid(), "ns/pid") == HOST_PID_NAMESPACE or node.root != "/"


def judge_namespace(is_whole: bool) -> Iterator[Finding]:
    """Yield which processes are seen."""
    container = "of this container only, unless it runs in the host's pid namespace (hostPID)"
    yield ok("of the whole node" if is_whole else container)


def read_unwatched(node: Node) -> tuple[str, ...]:
    """Return sentences about processes that seem to be ranks and are not watched."""
    discovery = make_discovery(node.proc, node.settings.match)
    discovery.find_all()
    return tuple(each.text for each in discovery.unwatched)


def judge_unwatched(texts: tuple[str, ...]) -> Iterator[Finding]:
    """Yield each of them."""
    yield from [warn(text) for text in texts] or [ok("none that seems to be a rank")]


def read_stacks(node: Node) -> tuple[str, str]:
    """Return what py-spy lacks, and otherwise what it is.

    It dumps ourselves: one that is blocked, or older than this Python, has a version, too.
    """
    py_spy = node.settings.py_spy or find_py_spy()
    if limit := find_gaps(node.proc, py_spy).python_stacks:
        return limit, ""
    dump = PythonStacks(ChildRunner(), py_spy).dump(os.getpid())
    text = f"{py_spy}, {_version_of(py_spy)}"
    if dump.threads is None and dump.failure is not None:
        return f"{text}, gives none of this process: {dump.failure.help_text}", ""
    return "", f"{text}; kernel.yama.ptrace_scope={read_ptrace_scope(node.proc)}"


def judge_stacks(found: tuple[str, str]) -> Iterator[Finding]:
    """Yield whether Python stacks can be read."""
    return _limited(*found)


def _version_of(py_spy: str) -> str:
    try:
        outcome = ChildRunner().run([py_spy, "--version"], PY_SPY_DEADLINE_S)
    except OSError as error:
        return f"which cannot be run: {error.strerror}"
    return printable(outcome.output.decode("utf-8", "replace"), MAX_VERSION) or "no version"


OF_THE_NODE = frozenset({"nvml"})
"""Collectors whose gap is a fault of the node: another check names it."""


def judge_sources(seen: Seen) -> Iterator[Finding]:
    """Yield what the collectors cannot read."""
    gaps = [gap for name, gap in seen.gaps.items() if gap and name not in OF_THE_NODE]
    yield from [warn(gap, RIGHTS_FIX) for gap in gaps]
    read = [each.replace("_", " ") for each in seen.gaps if each not in seen.absent]
    if not gaps:
        yield ok(", ".join(read))


def read_spool(node: Node) -> Finding:
    """Return whether dumps outlive the agent."""
    directory = node.settings.spool_dir
    if not directory:
        return ok("none (--spool-dir): dumps that the tower does not have are lost with the agent")
    spool = Spool(directory, lambda _: None, lambda _: True)
    if not os.path.lexists(spool.path):  # not made here: it would belong to whoever checks
        return _check_parent(spool.path)
    try:
        spool.open()
        return ok(f"{spool.path}, {len(spool.ids())} dumps wait in it")
    except BlockingIOError:
        return ok(f"{spool.path} is used by an agent that runs now")
    except OSError as error:
        return fail(f"{spool.path} cannot be used: {error.strerror}", SPOOL_FIX)
    finally:
        spool.close()


SPOOL_FIX = "give the agent's user this folder, or another one with --spool-dir"


def _check_parent(path: str) -> Finding:
    parent = os.path.dirname(path)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    may = os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK)
    text = f"{path} {'can' if may else 'cannot'} be made in {parent}"
    return ok(text) if may else fail(text, SPOOL_FIX)


def read_tower(node: Node) -> Finding:
    """Ask the tower as a report does, so that certificate, token and its scope are checked, too."""
    settings = node.settings
    if text := _refusal_of(node):
        return fail(f"{settings.tower} {text}", "docs/install.md, `No agent is connected`")
    how = "with this token" if settings.token else "without a token"
    return ok(f"{settings.tower} accepts reports {how}")


def _refusal_of(node: Node) -> str:
    settings = node.settings
    address = TowerAddress(url=settings.tower, token=settings.token, ca_file=settings.ca_file)
    client = Towers(address, REPLY_LIMITS)
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


def _pass(finding: Finding) -> Iterator[Finding]:
    yield finding


RANKS = Check(name="ranks", about=About.AGENT, read=_read_gaps, judge=judge_ranks)
PROCESSES = Check(name="processes", about=About.AGENT, read=read_namespace, judge=judge_namespace)
UNWATCHED = Check(name="not watched", about=About.AGENT, read=read_unwatched, judge=judge_unwatched)
STACKS = Check(name="Python stacks", about=About.AGENT, read=read_stacks, judge=judge_stacks)
NATIVE = Check(name="native places", about=About.AGENT, read=_read_gaps, judge=judge_native)
SOURCES = Check(name="sources", about=About.AGENT, read=Node.collected, judge=judge_sources)
SPOOL = Check(name="spool", about=About.AGENT, read=read_spool, judge=_pass)
TOWER = Check(
    name="tower",
    about=About.AGENT,
    read=read_tower,
    judge=_pass,
    hangs=fail("it does not answer", "check the address, and the firewalls on the way to it"),
)
