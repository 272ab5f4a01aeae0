"""Contents that dumps name by digest are kept once, the first of each, and only if named."""

from dataclasses import replace

from tests.batches import EMPTY_BATCH
from watchtower.evidence import case as module
from watchtower.evidence.case import DumpContents
from watchtower.wire.bounds import MAX_WORLD_SIZE
from watchtower.wire.collectives import (
    CollectiveRecord,
    GroupLog,
    ProcessGroup,
    RankCollectives,
    make_group_log,
    name_group,
    parse_members,
)
from watchtower.wire.dumps import DumpBatch, KernelWait, RankDump, ThreadDump
from watchtower.wire.stacks import Frame, Stack, make_stack

WORLD = ProcessGroup(id=name_group("0-3", 0), members="0-3", name="world")


def a_log(called: int, operation: str = "all_reduce") -> GroupLog:
    return make_group_log(
        group=WORLD.id,
        called=called,
        entered=called,
        completed=called - 1,
        records=(CollectiveRecord(number=called, operation=operation),),
    )


def a_dump(function: str = "", *logs: GroupLog) -> RankDump:
    digest = a_stack(function).digest
    threads = (ThreadDump(name="MainThread", digest=digest, main=True),) if function else ()
    return RankDump(
        rank=0,
        pid=10,
        start_time=10,
        kernel=KernelWait(),
        threads=threads,
        collectives=RankCollectives(logs=tuple(log.digest for log in logs)),
    )


def a_batch(*dumps: RankDump, stacks=(), groups=(WORLD,), logs=()) -> DumpBatch:
    return replace(
        EMPTY_BATCH,
        ranks=dumps,
        stacks=tuple(stacks),
        groups=tuple(groups),
        group_logs=tuple(logs),
    )


def a_stack(function: str) -> Stack:
    return make_stack((Frame(function=function, file="x.py", line=1),))


def test_only_what_a_dump_names_is_kept():
    contents = DumpContents()
    dump = a_dump("a", a_log(5))
    other = ProcessGroup(id="other", members="8-9")
    batch = a_batch(
        dump, stacks=[a_stack("a"), a_stack("b")], groups=[WORLD, other], logs=[a_log(5), a_log(6)]
    )
    contents.add(batch, [dump])
    assert list(contents.stacks.values()) == [a_stack("a")]
    assert list(contents.group_logs.values()) == [a_log(5)]
    assert list(contents.groups.values()) == [WORLD]


def test_a_log_of_a_group_that_nobody_describes_is_not_kept():
    contents = DumpContents()
    contents.add(a_batch(a_dump("", a_log(5)), groups=(), logs=[a_log(5)]), [a_dump("", a_log(5))])
    assert contents.group_logs == {}


def test_what_does_not_bear_its_right_name_is_not_kept():
    """Else one node could show what all others do in frames of its own making."""
    contents = DumpContents()
    forged_stack = replace(a_stack("b"), digest=a_stack("a").digest)
    forged_log = replace(a_log(9), digest=a_log(5).digest)
    dump = a_dump("a", a_log(5))
    contents.add(a_batch(dump, stacks=[forged_stack], logs=[forged_log]), [dump])
    assert (contents.stacks, contents.group_logs) == ({}, {})
    contents.add(a_batch(dump, stacks=[a_stack("a")], logs=[a_log(5)]), [dump])
    assert list(contents.stacks.values()) == [a_stack("a")]
    assert list(contents.group_logs.values()) == [a_log(5)]


def test_a_group_under_a_false_name_is_not_kept():
    contents = DumpContents()
    dump = a_dump("", a_log(5))
    forged = replace(WORLD, members="0-1")
    contents.add(a_batch(dump, groups=[forged], logs=[a_log(5)]), [dump])
    assert (contents.groups, contents.group_logs) == ({}, {})


def test_a_group_is_checked_once_for_all_its_logs(monkeypatch):
    """Its members may be 100 kB, its logs thousands: the diagnosis waits for this."""
    named = []
    monkeypatch.setattr(module, "name_group", lambda *parts: named.append(parts) or WORLD.id)
    logs = [a_log(number) for number in range(100)]
    contents = DumpContents()
    for _ in range(2):
        dump = a_dump("", *logs)
        contents.add(a_batch(dump, groups=[WORLD], logs=logs), [dump])
    assert (len(contents.group_logs), len(named)) == (100, 1)


def test_members_of_a_described_group_are_readable():
    assert parse_members(WORLD.members, MAX_WORLD_SIZE) == (0, 1, 2, 3)
