"""Dumper: the collective logs of ranks, from the records of their library and from their pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from watchtower_heartbeat.page import PageError, PageView

from agent.dumpers.dumper import DEAD, RankRecords, RanksOfRound, Step, Target, Tree
from agent.dumpers.flight_recorder import Asked, ask_recorders
from agent.dumpers.process_groups import BadGroups, read_groups
from agent.procfs import Proc
from agent.ranks.pages import find_page
from watchtower.readers.collective_calls import Membership, trim
from watchtower.wire.bounds import MAX_PEERS
from watchtower.wire.collectives import GroupLog, PeerTransfers, ProcessGroup
from watchtower.wire.dumps import KernelWait

RECORDS_AT_ONCE = 4
"""Processes asked at the same time. A process that does not answer costs one second, but no CPU."""

BLANK = (
    "the process has no collective log: TORCH_FR_BUFFER_SIZE=0 disables it, and older "
    "releases of torch have none for gloo"
)


class CollectiveLogs:
    """Reads the collective logs of ranks, and the counts of messages on their pages."""

    name, at_once, needs_stacks = "records", RECORDS_AT_ONCE, False

    def __init__(self, proc: Proc) -> None:
        self._proc = proc

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        """Return a step for each living rank."""
        return [
            partial(self._ask, tree, ranks)
            for tree in ranks.trees
            if tree.process.kernel.state not in DEAD
        ]

    def _ask(self, tree: Tree, ranks: RanksOfRound) -> None:
        process = tree.process
        # Again, so that its counts of messages are as new as the stack that py-spy reads now.
        tree.view = tree.target.read_page() or tree.view
        if tree.view is None and not ranks.is_sample:
            tree.view = self._search_page(tree.target)
        tree.records = read_collectives(
            self._proc, process.pid, tree.view, process.kernel, ranks.deadline
        )

    def _search_page(self, target: Target) -> PageView | None:
        """Return the page of a rank for which none is known yet.

        Discovery searches the page of a rank that starts for minutes only every minute. If such a
        job hangs in its first steps, its collective logs would be missing.
        """
        found = find_page(self._proc, target.pid, target.start_time).page
        try:
            return found.read() if found is not None else None
        except PageError:
            return None


def read_collectives(
    proc: Proc, pid: int, view: PageView | None, kernel: KernelWait, deadline: float
) -> RankRecords | None:
    """Return the collective logs from a rank's page and library; None if it has no records."""
    if view is None or not (view.record_socket or view.transfers or view.transfers_left_out > 0):
        return None
    asked, failures = Asked(), []
    groups: tuple[Membership, ...] = ()
    if view.record_socket:
        asked = ask_recorders(proc, pid, view.record_socket, kernel, deadline)
        failures.append(asked.failure)
    if asked.records and view.groups_descriptor > 0:
        try:
            groups = read_groups(proc, pid, view.groups_descriptor)
        except BadGroups as error:
            failures.append(f"its process groups are not known to the agent, because {error}")
    logs: list[tuple[ProcessGroup, GroupLog]] = []
    oldest_open = ""
    for recorder, records in asked.records:
        trimmed = trim(recorder, records, groups)
        logs += trimmed.logs
        oldest_open = oldest_open or trimmed.oldest_open
        failures.append(trimmed.missing)
    if groups and all(records.is_blank for _, records in asked.records):
        failures.append(BLANK)
    if view.transfers_left_out > 0:
        failures.append(f"{view.transfers_left_out} calls with further peers are not counted")
    return RankRecords(
        logs=tuple(logs),
        peers=tuple(_as_peers(view)),
        oldest_open=oldest_open,
        failures=tuple(filter(None, failures)),
    )


def _as_peers(view: PageView) -> Iterator[PeerTransfers]:
    for each in view.transfers[:MAX_PEERS]:
        yield PeerTransfers(
            peer=max(-1, each.peer),
            opened_by_send=each.opened_by_send,
            sends_begun=max(0, each.sends_begun),
            sends_done=max(0, each.sends_done),
            receives_begun=max(0, each.receives_begun),
            receives_done=max(0, each.receives_done),
        )
