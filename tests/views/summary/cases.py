"""Summaries of cases, and what must be true of each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from watchtower.diagnoser.summaries import MAX_BYTES, read_summary, write_summary
from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.diagnosis.diagnosis import diagnose_picture
from watchtower.diagnosis.picture import take_picture
from watchtower.evidence.case import Case
from watchtower.views.case_summary import (
    CELL_BYTES,
    LAG_UNKNOWN,
    STATES,
    CaseSummary,
    RankState,
    StackBranch,
)
from watchtower.views.summary import summarize
from watchtower.views.summary.grid import MAX_GROUPS
from watchtower.views.summary.stacks import MAX_DEPTH, MAX_STACKS
from watchtower.views.summary.waits import BY_NAME, MAX_ARROWS, MAX_BOXES
from watchtower.writing.ranksets import parse_ranks

DIAGNOSIS = Path(__file__).parents[2] / "diagnosis"
GOLDENS = sorted(path.parent for path in DIAGNOSIS.glob("goldens/*/case.json"))


def read_golden(folder: Path) -> Case:
    return msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)


def summary_of(case: Case) -> tuple[Diagnosis, CaseSummary]:
    picture = take_picture(case)
    diagnosis = diagnose_picture(picture)
    return diagnosis, summarize(picture, diagnosis)


def ranks_of_nodes(summary: CaseSummary) -> list[int]:
    """The ranks of a grid, in the order of its cells."""
    return [rank for node in summary.ranks.nodes for rank in sorted(parse_ranks(node.ranks))]


def states_of(summary: CaseSummary) -> dict[int, RankState]:
    cells = summary.ranks.cells[::CELL_BYTES]
    return dict(zip(ranks_of_nodes(summary), (STATES[cell] for cell in cells), strict=True))


def branches_of(branches: tuple[StackBranch, ...], depth: int = 1) -> Iterator[StackBranch]:
    for branch in branches:
        assert depth <= MAX_DEPTH
        yield branch
        yield from branches_of(branch.branches, depth + 1)


def check(case: Case) -> CaseSummary:
    """Check everything that is true of the summary of any case, and return it."""
    diagnosis, summary = summary_of(case)
    check_grid(case, diagnosis, summary)
    check_stacks(summary)
    check_waits(summary)
    check_contrast(case, diagnosis, summary)
    body = write_summary(summary)
    assert len(body) <= MAX_BYTES
    assert read_summary(body) == summary
    for text in texts_of(summary):
        assert text.isprintable()
    return summary


def check_grid(case: Case, diagnosis: Diagnosis, summary: CaseSummary) -> None:
    grid = summary.ranks
    assert sorted(ranks_of_nodes(summary)) == [item.rank for item in case.ranks]
    assert grid.count == len(case.ranks)
    found = states_of(summary)
    suspects = {suspect.rank for suspect in diagnosis.suspects}
    assert {r for r, state in found.items() if state is RankState.SUSPECT} == suspects
    lags = grid.cells[1::CELL_BYTES]
    assert grid.step is None or 0 in lags
    assert grid.step is not None or set(lags) <= {LAG_UNKNOWN}
    assert all(phase < len(grid.phases) for phase in grid.cells[2::CELL_BYTES])
    assert len(grid.groups) <= MAX_GROUPS
    if not grid.groups_left_out:
        assert sum(group.rank_set.count for group in grid.groups) == len(case.ranks)
        counts = Counter[RankState]()
        for group in grid.groups:
            counts[group.state] += group.rank_set.count
        assert counts == Counter(found.values())


def check_stacks(summary: CaseSummary) -> None:
    tree = summary.stacks
    made = list(branches_of(tree.branches))
    assert len(made) <= 2 * MAX_STACKS
    ended: list[int] = []
    for branch in made:
        assert branch.frame_numbers
        below = sum(child.rank_set.count for child in branch.branches)
        assert branch.ending.count + below <= branch.rank_set.count
        if not tree.ranks_left_out:
            assert branch.ending.count + below == branch.rank_set.count
        assert len(branch.branches) != 1 or branch.ending.count, "a chain is two branches"
        if branch.ending.is_whole:
            ended += parse_ranks(branch.ending.text)
    assert len(ended) == len(set(ended))
    assert sum(each.ending.count for each in made) + tree.ranks_left_out == tree.rank_count
    for siblings in (tree.branches, *(branch.branches for branch in made)):
        marks = [branch.has_suspect for branch in siblings]
        assert marks == sorted(marks, reverse=True)


def check_waits(summary: CaseSummary) -> None:
    waits = summary.waits
    assert len(waits.boxes) <= MAX_BOXES
    assert len(waits.arrows) <= MAX_ARROWS
    assert waits.sentence.endswith(".")
    ranks = [rank for box in waits.boxes for rank in parse_ranks(box.rank_set.text)]
    assert len(ranks) == len(set(ranks)), "a rank is in two boxes"
    for arrow in waits.arrows:
        assert waits.boxes[arrow.from_box].layer > waits.boxes[arrow.to_box].layer
        assert arrow.source in BY_NAME
    layers = {box.layer for box in waits.boxes}
    assert layers == set(range(len(layers)))


def check_contrast(case: Case, diagnosis: Diagnosis, summary: CaseSummary) -> None:
    contrast = summary.contrast
    if not diagnosis.suspects or len(diagnosis.suspects) == len(case.ranks):
        assert contrast is None
        return
    assert contrast is not None
    assert contrast.rank == diagnosis.suspects[0].rank
    shares = [each.agreeing / each.known for each in contrast.differences]
    assert shares == sorted(shares)
    for each in contrast.differences:
        assert each.suspect != each.peers
        assert each.known <= contrast.peer_count


def texts_of(summary: CaseSummary) -> Iterator[str]:
    """All texts that are cleaned. Frames are not."""
    yield from summary.ranks.phases
    for node in summary.ranks.nodes:
        yield node.node
    for group in summary.ranks.groups:
        yield from (group.phase, group.place, group.node)
    for box in summary.waits.boxes:
        yield from (box.place, box.node, box.call)
    yield from (arrow.label for arrow in summary.waits.arrows)
    yield summary.waits.sentence
    if summary.contrast is not None:
        yield summary.contrast.node
        for each in summary.contrast.differences:
            yield from (each.suspect, each.peers)
