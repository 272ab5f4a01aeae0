"""Changes to what recorders of an imagined job tell, none of which says anything of its fault."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tests.synthesis.evidence import own
from watchtower.evidence.case import Case
from watchtower.wire.collectives import (
    CollectiveRecord,
    GroupLog,
    ProcessGroup,
    RankCollectives,
    change_group_log,
    make_group_log,
    name_group,
)
from watchtower.wire.dumps import RankDump, ThreadDump
from watchtower.wire.stacks import Frame, make_stack

SAVES_BEFORE = 6

_THREAD = (
    Frame(function="run", file="concurrent/futures/thread.py", line=58, library=True),
    Frame(function="Thread._bootstrap", file="threading.py", line=1002, library=True),
)
_SAVE = Frame(
    function="save_state_dict",
    file="torch/distributed/checkpoint/state_dict_saver.py",
    line=3,
    library=True,
)
IN_GATHER = make_stack(
    (
        Frame(
            function="gather_object",
            file="torch/distributed/distributed_c10d.py",
            line=3011,
            library=True,
        ),
        _SAVE,
        own("save", 61, "/job/saver.py"),
        *_THREAD,
    )
)
WRITING = make_stack((_SAVE, own("save", 60, "/job/saver.py"), *_THREAD))


def silence(case: Case, ranks: Collection[int], failure: str = "") -> Case:
    """Switch the recorders of these ranks off, or let them fail."""
    told = RankCollectives(failure=failure) if failure else None
    return _change_dumps(case, ranks, lambda dump: replace(dump, collectives=told))


def overwrite(case: Case, ranks: Collection[int]) -> Case:
    """Let these ranks have forgotten what they called: only numbers are left."""
    logs = {log.digest: log for log in case.group_logs}
    return _change_logs(
        case, ranks, {digest: replace(log, records=()) for digest, log in logs.items()}
    )


def remake(case: Case, ranks: Collection[int]) -> Case:
    """Let these ranks know every group as the one of its members that was made after it.

    So it is after a process was started anew and the others only made their groups again, or where
    groups of equal members are made in another order.
    """
    groups = {group.id: group for group in case.groups}
    later = {
        name: replace(group, id=name_group(group.members, group.order + 1), order=group.order + 1)
        for name, group in groups.items()
    }
    changed = _change_logs(
        case,
        ranks,
        {
            log.digest: replace(log, group=later[log.group].id)
            for log in case.group_logs
            if log.group in later
        },
    )
    known = {group.id: group for group in (*case.groups, *later.values())}
    return replace(changed, groups=tuple(known.values()))


def save_beside(case: Case, writing: Collection[int]) -> Case:
    """Let a thread of every rank save a checkpoint: those `writing` have not come to its gather."""
    if not case.groups:
        return _with_savers(case, {}, writing)
    members = f"0-{case.world_size - 1}"
    group = ProcessGroup(
        id=name_group(members, 5), members=members, order=5, name="saves", library="gloo"
    )
    logs = {is_writing: _log_of(group, is_writing=is_writing) for is_writing in (False, True)}
    changed = _with_savers(case, logs, writing)
    return replace(
        changed,
        groups=(*case.groups, group),
        group_logs=(*case.group_logs, *logs.values()),
    )


def _log_of(group: ProcessGroup, *, is_writing: bool) -> GroupLog:
    called = SAVES_BEFORE + (not is_writing)
    return make_group_log(
        group=group.id,
        called=called,
        entered=called,
        completed=SAVES_BEFORE,
        records=tuple(
            CollectiveRecord(number=number, operation="gather")
            for number in range(max(1, called - 7), called + 1)
        ),
    )


def _with_savers(case: Case, logs: Mapping[bool, GroupLog], writing: Collection[int]) -> Case:
    def change(dump: RankDump) -> RankDump:
        is_writing = dump.rank in writing
        stack = WRITING if is_writing else IN_GATHER
        thread = ThreadDump(name="saver_0", digest=stack.digest)
        told = dump.collectives
        if told is not None and logs:
            told = replace(told, logs=(*told.logs, logs[is_writing].digest))
        return replace(dump, threads=(*dump.threads, thread), collectives=told)

    changed = _change_dumps(case, range(case.world_size), change)
    return replace(changed, stacks=(*case.stacks, IN_GATHER, WRITING))


def _change_dumps(
    case: Case, ranks: Collection[int], change: Callable[[RankDump], RankDump]
) -> Case:
    return replace(
        case,
        ranks=tuple(
            replace(item, dumps=tuple(change(dump) for dump in item.dumps))
            if item.rank in ranks
            else item
            for item in case.ranks
        ),
    )


def _change_logs(case: Case, ranks: Collection[int], logs: Mapping[str, GroupLog]) -> Case:
    """Give these ranks other logs; `logs` are by the digest of the one they replace."""
    named = {digest: change_group_log(log) for digest, log in logs.items()}

    def change(dump: RankDump) -> RankDump:
        told = dump.collectives
        if told is None:
            return dump
        digests = (named[each].digest if each in named else each for each in told.logs)
        return replace(dump, collectives=replace(told, logs=tuple(digests)))

    changed = _change_dumps(case, ranks, change)
    known = {log.digest: log for log in (*case.group_logs, *named.values())}
    return replace(changed, group_logs=tuple(known.values()))
