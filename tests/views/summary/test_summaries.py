"""Properties of the summary of every case: real ones, imagined ones and hostile ones."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from tests.diagnosis import builders as b
from tests.diagnosis.strategies import cases
from tests.properties import examples
from tests.synthesis.faults import FAULTS, OFFSETS, imagine, imagine_cut
from tests.synthesis.layout import Layout
from tests.views.summary.cases import GOLDENS, check, read_golden, states_of, summary_of
from watchtower.diagnoser.summaries import MAX_BYTES, read_summary, write_summary
from watchtower.views.case_summary import RankState
from watchtower.views.stacks import list_main_stacks, list_whole_stacks
from watchtower.views.summary.grid import cut_grid
from watchtower.views.summary.stacks import MAX_STACKS

SENTENCES = Path(__file__).with_name("sentences.golden.txt")

GRID = Layout(tensor=4, data=4, pipeline=4)

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202egnp.\u2066\n\t" * 4


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_the_summary_of_a_golden_is_sound(folder):
    case = read_golden(folder)
    summary = check(case)
    assert list_whole_stacks(summary.stacks) == list_main_stacks(case)


def test_the_waits_of_each_golden_in_words(update_golden):
    """One file, so that a change of the words shows in one difference."""
    words = "".join(
        f"{folder.name}:\n  {summary_of(read_golden(folder))[1].waits.sentence}\n"
        for folder in GOLDENS
    )
    if update_golden:
        SENTENCES.write_text(words, "utf-8")
    assert words == SENTENCES.read_text("utf-8")


@examples(200)
@given(cases())
def test_the_summary_of_any_case_is_sound(case):
    check(case)


@pytest.mark.parametrize("fault", [*FAULTS, *OFFSETS], ids=lambda fault: fault.name)
def test_the_summary_of_an_imagined_job_is_sound(fault):
    check(imagine(GRID, fault, rank=21).case)


def test_a_cut_network_is_one_box_whose_call_all_have_entered():
    waits = check(imagine_cut(GRID).case).waits
    (box,) = waits.boxes
    assert (box.rank_set.text, box.layer, waits.arrows) == ("0-63", 0, ())
    assert "all_reduce" in box.call


def test_names_from_processes_are_clean_and_short():
    stack = f"{'f' * 900} /job/{'x' * 900}.py:3 < main /job/main.py:1"
    ranks = [
        b.a_rank(0, stack, node=HOSTILE[:250], phase=HOSTILE[:250], target=HOSTILE),
        *(b.a_rank(n, node=HOSTILE[:200] + str(n), phase=f"{HOSTILE[:99]}{n}") for n in (1, 2, 3)),
    ]
    summary = check(b.a_case(ranks))
    assert all(len(node.node) <= 64 for node in summary.ranks.nodes)
    assert all(len(group.place) <= 160 for group in summary.ranks.groups)


def test_any_number_of_stacks_leaves_a_small_tree_with_the_suspects():
    ranks = [
        b.a_rank(n, f"work_{n} /job/{'w' * 200}{n}.py:1 < main /job/main.py:{n}") for n in range(90)
    ]
    ranks += [b.a_rank(n) for n in range(90, 190)]
    case = b.a_case(ranks)
    tree = check(case).stacks
    assert tree.stacks_left_out >= 91 - MAX_STACKS
    assert tree.rank_count == 190
    assert list_whole_stacks(tree) is None


def test_a_stack_deeper_than_the_tree_is_left_out_and_counted():
    def stack(forks):
        calls = [f"f{n} /job/a.py:{n}" for n in range(forks)]
        return " < ".join([f"own{forks} /job/b.py:1", *reversed(calls)])

    ranks = [b.a_rank(n, stack(n + 1)) for n in range(30)]
    tree = check(b.a_case(ranks)).stacks
    assert tree.ranks_left_out == tree.stacks_left_out > 0


def test_the_grid_is_halved_until_the_summary_fits():
    _, summary = summary_of(b.a_case(b.ranks_in(8)))
    noise = bytes(n * n % 251 * n % 255 for n in range(3 * 300_000))
    node = replace(summary.ranks.nodes[0], ranks="0-299999", count=300_000)
    large = replace(summary.ranks, nodes=(node,), cells=noise)
    body = write_summary(replace(summary, ranks=large))
    read = read_summary(body)
    assert len(body) <= MAX_BYTES
    assert read is not None
    assert 0 < read.ranks.count < 300_000
    assert read.ranks.ranks_left_out == 300_000 - read.ranks.count
    assert read.ranks.groups == summary.ranks.groups


def test_a_cut_grid_has_the_ranks_of_the_first_nodes():
    _, summary = summary_of(b.a_case(b.ranks_in(12)))
    cut = cut_grid(summary.ranks, 6)
    assert [(node.ranks, node.count) for node in cut.nodes] == [("0-3", 4), ("4-5", 2)]
    assert cut.cells == summary.ranks.cells[:18]
    assert cut.ranks_left_out == 6


def test_a_text_that_is_no_summary_is_left_out():
    assert read_summary(b"") is None
    assert read_summary(b"{}") is None
    assert read_summary(write_summary(summary_of(b.a_case(b.ranks_in(2)))[1])[:-80]) is None


def test_ranks_of_all_kinds_have_their_state():
    case = b.a_case(
        [
            b.a_rank(0, b.IN_ALL_REDUCE),
            b.a_rank(1, b.FETCHING, syscall="read"),
            b.a_rank(2, b.IN_ALL_REDUCE, phase="eval"),
            b.a_dead_rank(3, code=0),
            b.a_missing_rank(4),
            b.a_silent_rank(5),
            b.a_rank(6, b.IN_ALL_REDUCE, native=b.a_native("device_wait")),
            b.a_rank(7, b.IN_ALL_REDUCE, step=None),
        ]
    )
    diagnosis, summary = summary_of(case)
    check(case)
    found = states_of(summary)
    accused = {each.rank for each in diagnosis.suspects}
    others = {rank: state for rank, state in found.items() if rank not in accused}
    expected = {
        0: RankState.WAITING,
        1: RankState.ELSEWHERE,
        2: RankState.WAITING,
        3: RankState.ENDED,
        4: RankState.MISSING,
        5: RankState.UNSEEN,
        6: RankState.WAITING,
        7: RankState.WAITING,
    }
    assert others == {rank: state for rank, state in expected.items() if rank not in accused}
