"""The merged stacks of a job, as the API returns them."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.evidence.case import Case
from watchtower.evidence.native import describe_native
from watchtower.evidence.threads import index_stacks
from watchtower.incidents.incident import StackGroup
from watchtower.views.case_summary import StackBranch, StackTree
from watchtower.views.summary.stacks import main_digest
from watchtower.wire.dumps import RankDump, ThreadDump
from watchtower.wire.stacks import Frame
from watchtower.writing.ranksets import format_ranks, name_ranks, parse_ranks

MAX_ITEMS = 1024
"""Groups in one answer, those with the most ranks first."""

MAIN = "MainThread"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStackView:
    """One distinct stack, and the ranks that have it."""

    ranks: str
    thread: str
    """Name of the thread; MainThread for the main thread."""
    frames: list[Frame]
    """Innermost first."""
    native: str = ""
    """The activity of the training thread in native code, such as "polls for its device in
    libcuda.so.1"; empty if the samples do not show more than the frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackList:
    """The distinct stacks of a job now, those with the most ranks first."""

    job: str
    generation: int
    items: list[ThreadStackView]
    left_out: int
    """Number of distinct stacks that are not listed."""
    missing_evidence: list[str]
    """Ranks without a stack, with the reason."""


def list_stacks(case: Case, rank: int | None, *, all_threads: bool) -> StackList:
    """Return the stacks of the last dumps in a case. `rank`: only of this rank."""
    known = index_stacks(case.stacks)
    groups: dict[tuple[str, str, str], list[int]] = {}
    without: dict[str, list[int]] = {}
    for item in case.ranks:
        if rank is not None and item.rank != rank:
            continue
        dump = item.dumps[-1] if item.dumps else None
        threads = [t for t in _threads(dump, all_threads) if t.digest in known]
        for thread in threads:
            name = MAIN if thread.main else thread.name
            place = describe_native(dump.native if dump and thread.main else thread.native)
            groups.setdefault((name, thread.digest, place), []).append(item.rank)
        if not threads:
            without.setdefault(_why_none(dump), []).append(item.rank)
    order = sorted(
        groups.items(), key=lambda group: (group[0][0] != MAIN, -len(group[1]), group[1])
    )
    return StackList(
        job=case.job,
        generation=case.generation,
        items=[
            ThreadStackView(
                ranks=format_ranks(ranks),
                thread=name,
                frames=list(known[digest].stack.frames),
                native=place,
            )
            for (name, digest, place), ranks in order[:MAX_ITEMS]
        ],
        left_out=max(0, len(order) - MAX_ITEMS),
        missing_evidence=[f"{name_ranks(r)}: {why}" for why, r in sorted(without.items())],
    )


def list_main_stacks(case: Case) -> list[StackGroup]:
    """Return the main-thread stacks of the last dumps of a case, the rarest first."""
    frames = {stack.digest: stack.frames for stack in case.stacks}
    ranks: dict[str, list[int]] = {}
    for item in case.ranks:
        digest = main_digest(item.dumps[-1], frames) if item.dumps else None
        if digest is not None:
            ranks.setdefault(digest, []).append(item.rank)
    found = [(members, frames[digest]) for digest, members in ranks.items()]
    return _rarest_first(found)


def list_whole_stacks(tree: StackTree) -> list[StackGroup] | None:
    """Return the same stacks from a summary; None if its tree does not contain all of them."""
    if tree.stacks_left_out:
        return None
    found: list[tuple[list[int], tuple[Frame, ...]]] = []
    waiting: list[tuple[StackBranch, tuple[int, ...]]] = [(one, ()) for one in tree.branches]
    while waiting:
        branch, above = waiting.pop()
        path = above + branch.frame_numbers
        if not branch.ending.is_whole:
            return None
        if branch.ending.count:
            frames = tuple(tree.frames[number] for number in reversed(path))
            found.append((sorted(parse_ranks(branch.ending.text)), frames))
        waiting += [(child, path) for child in branch.branches]
    return _rarest_first(found)


def _rarest_first(found: list[tuple[list[int], tuple[Frame, ...]]]) -> list[StackGroup]:
    rarest = sorted(found, key=lambda item: (len(item[0]), item[0]))
    return [StackGroup(ranks=format_ranks(members), frames=frames) for members, frames in rarest]


def _threads(dump: RankDump | None, all_threads: bool) -> list[ThreadDump]:
    if dump is None:
        return []
    return [thread for thread in dump.threads if all_threads or thread.main]


def _why_none(dump: RankDump | None) -> str:
    if dump is None:
        return "no dump arrived"
    failure = dump.failure
    return f"no stack: {failure.help_text or failure.kind.value}" if failure else "no stack"
