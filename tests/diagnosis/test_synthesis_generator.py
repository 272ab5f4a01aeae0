"""The imagined jobs themselves: groups, programs and places are those of real ones."""

import pytest

from tests.properties import is_thorough
from tests.synthesis.evidence import Maker, Recording
from tests.synthesis.faults import LOADING, imagine_cut
from tests.synthesis.layout import Layout, make_groups
from tests.synthesis.program import Outcome, insert, skip, write_program
from tests.synthesis.timeline import run
from watchtower.wire.collectives import name_group

SQUARE = Layout(tensor=2, data=2)


def standing_in(outcome: Outcome, rank: int) -> str:
    """Return the group, or the operation and the peer, for which a rank waits; empty if it does not
    wait."""
    place, calls = outcome.places[rank], outcome.programs[rank]
    if not place.inside:
        return ""
    return calls[place.at].group or f"{calls[place.at].operation} {calls[place.at].peer}"


def test_groups_are_those_of_megatron():
    groups = Layout(tensor=2, data=2, pipeline=2).groups
    assert groups["world"] == tuple(range(8))
    assert [groups[f"tp{index}"] for index in range(4)] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [groups[f"dp{index}"] for index in range(4)] == [(0, 2), (1, 3), (4, 6), (5, 7)]


def test_experts_split_the_data_parallel_groups():
    groups = Layout(tensor=2, data=4, expert=2).groups
    assert groups["dp0"] == (0, 2, 4, 6)
    assert (groups["ep0.0"], groups["ep0.1"]) == ((0, 2), (4, 6))


def test_members_are_written_as_the_wire_writes_them():
    made = make_groups(Layout(tensor=2, data=4).groups)
    assert made["dp1"].members == "1-7/2"
    assert made["dp1"].id == name_group("1-7/2", 0)


def test_groups_of_equal_members_differ_by_their_order():
    made = make_groups(Layout(tensor=4).groups)
    assert (made["world"].members, made["tp0"].members) == ("0-3", "0-3")
    assert (made["world"].order, made["tp0"].order) == (0, 1)
    assert made["world"].id != made["tp0"].id


def test_a_rank_asleep_holds_up_its_groups_and_through_them_the_others():
    # As measured on a real job of 2 x 2 ranks: rank 2 waits in tensor parallel for rank 3, and the
    # ranks 0 and 1 get through theirs and wait in data parallel, each for its own partner.
    outcome = run(SQUARE, stops={3: 0})
    assert [standing_in(outcome, rank) for rank in range(4)] == ["dp0", "dp1", "tp1", ""]


def test_a_stage_asleep_starves_the_stages_behind_it():
    outcome = run(Layout(pipeline=4), stops={1: 0})
    assert [standing_in(outcome, rank) for rank in range(4)] == ["recv 1", "", "recv 1", "recv 2"]


def test_without_a_fault_every_rank_ends_its_step():
    for layout in (SQUARE, Layout(pipeline=3), Layout(tensor=2, data=4, pipeline=2, expert=2)):
        outcome = run(layout)
        assert all(place.done for place in outcome.places)


def test_a_call_left_out_is_missed_by_its_group_only():
    # Its second call there meets the first of its neighbour, whose second then has nobody.
    outcome = run(SQUARE, spoil={0: skip(0)})
    assert [standing_in(outcome, rank) for rank in range(4)] == ["world", "tp0", "world", "dp1"]


def test_one_call_too_many_keeps_its_caller_while_the_others_go_on():
    call = write_program(SQUARE, 0)[0]
    outcome = run(SQUARE, spoil={0: insert(0, call)})
    assert [standing_in(outcome, rank) for rank in range(4)] == ["tp0", "world", "dp0", "world"]


def test_logs_count_the_calls_of_all_steps():
    outcome = run(SQUARE, stops={3: 0}, history=40)
    case = Maker(SQUARE).make(outcome, {3: LOADING})
    names = {group.id: group.name for group in case.groups}
    logs = {log.digest: log for log in case.group_logs}

    def log_of(rank: int, group: str) -> tuple[int, int, int]:
        collectives = case.ranks[rank].dumps[-1].collectives
        assert collectives
        (log,) = (
            logs[each] for each in collectives.logs if names[logs[each].group].startswith(group)
        )
        return log.called, log.entered, log.completed

    # Two all_reduces of a tensor parallel group a step and two collectives of a data parallel one.
    per_step = sum(call.group == "tp1" for call in write_program(SQUARE, 2))
    assert log_of(2, "tp") == (40 * per_step + 1, 40 * per_step + 1, 40 * per_step)
    assert log_of(3, "tp") == (40 * per_step, 40 * per_step, 40 * per_step)
    assert log_of(0, "dp") == (81, 81, 80)


def test_nccl_like_records_do_not_say_what_has_begun():
    case = Maker(SQUARE, Recording(queued=True)).make(run(SQUARE, stops={3: 0}), {3: LOADING})
    assert {log.entered for log in case.group_logs} == {-1}
    assert all(log.completed >= 0 for log in case.group_logs)


def test_in_a_network_that_is_cut_everybody_is_in_the_same_call():
    truth = imagine_cut(Layout(tensor=2, data=2, pipeline=2))
    world = next(group.id for group in truth.case.groups if group.name == "world")
    logs = [log for log in truth.case.group_logs if log.group == world]
    assert [(log.called, log.completed) for log in logs] == [(41, 40)]


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1024, 16384])
def test_large_layouts_take_no_more_than_their_share(size: int):
    size = size if is_thorough() else min(size, 1024)
    layout = Layout(tensor=8, data=size // 128, pipeline=16)
    outcome = run(layout, stops={size // 3: 1})
    waiting = sum(place.inside for place in outcome.places)
    assert waiting == size - 1
