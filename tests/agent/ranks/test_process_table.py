"""The table of processes stays small, however processes come and go."""

from __future__ import annotations

from agent.procfs import Proc, Stat
from agent.ranks.process_table import MAX_LINEAGE, Process, ProcessTable


class Births(Proc):
    """A /proc in which processes come and go as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[int, int] = {1: 0}

    def pids(self) -> set[int]:
        return set(self.parents)

    def stat(self, pid: int) -> Stat | None:
        return Stat(
            comm="x",
            state="S",
            ppid=self.parents[pid],
            kernel_thread=False,
            cpu_s=0.0,
            start_time=pid,
            start_code=2,
            exit_code=0,
        )


def test_orphans_that_end_are_forgotten_by_whoever_they_were_left_to() -> None:
    proc = Births()
    table = ProcessTable(proc)
    table.refresh()
    (init,) = table._processes.values()
    for number in range(10, 1000, 2):
        proc.parents[number], proc.parents[number + 1] = 1, number
        table.refresh()
        del proc.parents[number]  # the parent first: its child is init's now
        table.refresh()
        assert [child.pid for child in init.descendants()] == [number + 1]
        del proc.parents[number + 1]
        table.refresh()
        assert list(init.descendants()) == []


def test_a_program_that_forks_itself_anew_for_ever_does_not_grow() -> None:
    proc = Births()
    table = ProcessTable(proc)
    proc.parents[10] = 1
    table.refresh()
    for pid in range(11, 2000):
        proc.parents[pid] = pid - 1
        table.refresh()
        del proc.parents[pid - 1]
        table.refresh()
    process: Process | None = table._processes[1999]
    depth = 0
    while process is not None:
        process, depth = process.parent, depth + 1
    assert depth <= MAX_LINEAGE + 2
