"""Contents that a round of dumps has read of each rank and its children, and its dumps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from watchtower_heartbeat.page import PageView

from agent.delivery.batch_contents import GroupSet, StackSet
from agent.discovery.launchers import is_python
from agent.dumpers.collectives import RankRecords
from agent.dumpers.flight_recorder import LATE
from agent.dumpers.native_functions import Moment
from agent.dumpers.python_stacks import StackDump, failed
from agent.dumping.targets import Target
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.dumps import (
    ChildDump,
    FailureKind,
    KernelWait,
    NativeKind,
    NativePlace,
    RankDump,
)
from watchtower.wire.native_functions import NativeFunctions
from watchtower.wire.programs import name_program
from watchtower.wire.report import ProcessState
from watchtower.writing.printable import printable

LATE_HELP = "the round of dumps had no time left for this process"

DEAD = (ProcessState.ZOMBIE, ProcessState.GONE)


@dataclass(slots=True, kw_only=True, eq=False)
class Process:
    """One process, with everything read of it so far."""

    pid: int
    start_time: int = 0
    owner: str
    is_child: bool = False
    kernel: KernelWait
    command: list[str] = field(default_factory=list)
    stacks: StackDump = field(default_factory=StackDump)


@dataclass(slots=True, kw_only=True, eq=False)
class Tree:
    """A rank and its children, with everything read of them so far."""

    target: Target
    view: PageView | None
    records: RankRecords | None = None
    process: Process
    children: list[Process]
    native: NativePlace | None = None


def may_wait_for_thread(tree: Tree) -> bool:
    """Return whether the main thread is blocked, and not in a wait for its device."""
    native = tree.native
    return native is not None and not native.running and native.kind is not NativeKind.DEVICE_WAIT


def moment_of(tree: Tree) -> Moment:
    """Return what shows whether the main thread of a rank goes on after this dump."""
    threads, native, view = tree.process.stacks.threads, tree.native, tree.view
    is_known = (
        native is not None and not native.running and -1 not in (native.run_ns, native.switches)
    )
    return Moment(
        stack=threads.main_digest if threads is not None else "",
        beat=(view.step, view.beat_ns) if view is not None and view.beat_ns >= 0 else None,
        counters=(native.run_ns, native.switches) if native is not None and is_known else None,
    )


def unreached(target: Target, owner: str) -> Tree:
    """Return a rank that the round did not reach in time."""
    late = failed(FailureKind.TIMEOUT, LATE_HELP)
    process = Process(pid=target.pid, owner=owner, kernel=KernelWait(), stacks=late)
    return Tree(target=target, view=target.read_page(), process=process, children=[])


def is_dumpable(process: Process) -> bool:
    """Return whether py-spy can work: a living Python process without a failure so far."""
    return (
        is_python(process.command)
        and process.kernel.state not in DEAD
        and process.stacks.failure is None
    )


def as_rank_dump(
    tree: Tree, stacks: StackSet, groups: GroupSet, functions: NativeFunctions | None
) -> RankDump:
    """Return the dump of a rank, whose stacks and collective logs are added to those of the
    batch.
    """
    found = tree.process.stacks  # read once: an abandoned round may still change it
    dump = RankDump(
        rank=tree.target.rank,
        pid=tree.target.pid,
        start_time=tree.target.start_time,
        kernel=tree.process.kernel,
        step=max(tree.view.step, -1) if tree.view is not None else -1,
        threads=stacks.add(found, tree.process.pid),
        failure=found.failure,
        collectives=groups.add(tree.records or _unread_records(tree)),
        native=tree.native,
        functions=functions,
    )
    return replace(dump, children=tuple(_as_child_dump(each, stacks) for each in tree.children))


def _unread_records(tree: Tree) -> RankRecords | None:
    """Return that the collective log of a rank was not read, if the rank has one."""
    view = tree.view
    has_log = view is not None and bool(view.record_socket or view.transfers)
    is_dead = tree.process.kernel.state in DEAD
    return RankRecords(failures=(LATE,)) if has_log and not is_dead else None


def _as_child_dump(child: Process, stacks: StackSet) -> ChildDump:
    found = child.stacks
    return ChildDump(
        pid=child.pid,
        kernel=child.kernel,
        command=printable(name_program(child.command), MAX_NAME),
        threads=stacks.add(found, child.pid),
        failure=found.failure,
    )
