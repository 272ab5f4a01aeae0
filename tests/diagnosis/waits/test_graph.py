"""The wait-for graph: ends and paths, on collective logs of a few ranks."""

from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import ranks_in
from tests.diagnosis.recording import a_recorded_case, calls, peer
from watchtower.diagnosis.waits.collective_logs import read_collective_logs
from watchtower.diagnosis.waits.graph import (
    End,
    EndKind,
    PointKind,
    WaitGraph,
    WaitPoint,
    build_wait_graph,
    find_components,
)

DONE = calls("all_reduce")
INSIDE = calls("all_reduce all_reduce", open=1)
QUEUED = calls("all_reduce all_reduce", open=1, queued=True)
GRID = {"tp0": [0, 1], "tp1": [2, 3], "dp0": [0, 2], "dp1": [1, 3]}


def graph_of(groups, made, *, transfers=None, elsewhere=(), absent=(), count=4):
    case = a_recorded_case(ranks_in(count), groups, made, transfers)
    logs = read_collective_logs(case)
    assert logs is not None
    return build_wait_graph(logs, elsewhere, absent)


def ends_of(graph):
    return [(end.kind.value, end.ranks) for end in graph.ends]


def test_a_cascade_over_groups_ends_at_the_rank_that_does_not_wait():
    graph = graph_of(
        GRID,
        {
            0: {"tp0": DONE, "dp0": INSIDE},
            1: {"tp0": DONE, "dp1": INSIDE},
            2: {"tp1": INSIDE, "dp0": DONE},
            3: {"tp1": DONE, "dp1": DONE},
        },
    )
    assert ends_of(graph) == [("rank", (3,))]
    assert graph.ends[0].awaited_by == 3
    assert graph.ends[0].certain
    assert [(rank, point.group.name) for rank, point in graph.path_to(graph.ends[0])] == [
        (0, "dp0"),
        (2, "tp1"),
    ]


def test_all_inside_is_an_end_without_a_laggard():
    graph = graph_of({"w": [0, 1, 2, 3]}, {rank: {"w": INSIDE} for rank in range(4)})
    assert ends_of(graph) == [("point", (0, 1, 2, 3))]
    assert graph.sinks == frozenset()


def test_a_queued_call_is_not_known_to_have_begun():
    made = {rank: {"w": QUEUED} for rank in range(4)}
    graph = graph_of({"w": [0, 1, 2, 3]}, made)
    assert not any(end.certain for end in graph.ends)


def test_a_member_without_logs_may_be_the_one():
    graph = graph_of({"w": [0, 1, 2, 3]}, {rank: {"w": INSIDE} for rank in (0, 1, 3)})
    assert ends_of(graph) == [("rank", (2,))]
    assert not graph.ends[0].certain


def test_ranks_known_to_be_missing_come_before_ranks_without_logs():
    made = {0: {"w": INSIDE}, 1: {"w": DONE}, 3: {"w": INSIDE}}
    graph = graph_of({"w": [0, 1, 2, 3]}, made)
    assert ends_of(graph) == [("rank", (1,))]


def test_a_dead_member_without_logs_is_missing():
    made = {rank: {"w": INSIDE} for rank in (0, 1, 3)}
    graph = graph_of({"w": [0, 1, 2, 3]}, made, absent=[2])
    assert graph.ends[0].certain


def test_a_call_in_the_background_does_not_block_a_rank_that_is_elsewhere():
    made = {0: {"w": INSIDE, "g": DONE}, 1: {"w": INSIDE, "g": INSIDE}}
    graph = graph_of({"w": [0, 1], "g": [0, 1]}, made, elsewhere=[0], count=2)
    assert ("rank", (0,)) in ends_of(graph)


def test_two_groups_in_two_orders_are_a_cycle():
    made = {0: {"a": INSIDE, "b": DONE}, 1: {"a": DONE, "b": INSIDE}}
    graph = graph_of({"a": [0, 1], "b": [0, 1]}, made, count=2)
    assert ends_of(graph) == [("cycle", (0, 1))]
    assert len(graph.ends[0].points) == 2


def test_ranks_outside_lead_to_the_cycle():
    made = {
        0: {"w": INSIDE, "b": DONE},
        1: {"w": DONE, "b": INSIDE},
        2: {"w": INSIDE},
        3: {"w": INSIDE},
    }
    graph = graph_of({"w": [0, 1, 2, 3], "b": [0, 1]}, made)
    assert ends_of(graph) == [("cycle", (0, 1))]
    assert graph.ends[0].awaited_by == 2


def test_the_points_of_a_rank_in_a_cycle_are_in_the_cycle():
    """Two calls of rank 0 are open; rank 2 waits for the cycle from outside."""
    made = {
        0: {"a": INSIDE, "c": INSIDE, "b": DONE},
        1: {"a": DONE, "c": DONE, "b": INSIDE, "d": DONE},
        2: {"d": INSIDE},
    }
    groups = {"a": [0, 1], "b": [0, 1], "c": [0, 1], "d": [1, 2]}
    graph = graph_of(groups, made, count=3)
    (cycle,) = graph.ends
    assert {p.group.name for p in graph.points_of(0)} == {"a", "c"}
    assert {p.group.name for rank in cycle.ranks for p in graph.points_of(rank)} == {"a", "b", "c"}
    assert {p.group.name for p in cycle.points} == {"a", "b", "c"}
    assert graph.points_of(3) == ()


def test_two_faults_are_two_ends():
    made = {0: {"a": INSIDE}, 1: {"a": DONE}, 2: {"b": INSIDE}, 3: {"b": DONE}}
    graph = graph_of({"a": [0, 1], "b": [2, 3]}, made)
    assert sorted(ends_of(graph)) == [("rank", (1,)), ("rank", (3,))]


def test_a_chain_of_receives_ends_at_the_stage_that_does_not_send():
    transfers = {
        0: [peer(1, sent=(40, 40))],
        1: [peer(0, received=(40, 40), opens=False), peer(2, sent=(40, 40))],
        2: [peer(1, received=(41, 40), opens=False), peer(3, sent=(40, 40))],
        3: [peer(2, received=(41, 40), opens=False)],
    }
    graph = graph_of({}, {rank: {} for rank in range(4)}, transfers=transfers)
    assert ends_of(graph) == [("rank", (1,))]
    assert [rank for rank, _ in graph.path_to(graph.ends[0])] == [3, 2]


def test_a_message_that_was_sent_is_waited_for_with_no_rank_missing():
    transfers = {0: [peer(1, sent=(5, 5))], 1: [peer(0, received=(5, 4), opens=False)]}
    graph = graph_of({}, {0: {}, 1: {}}, transfers=transfers, count=2)
    assert [end.kind for end in graph.ends] == [EndKind.POINT]


def test_a_neighbour_that_stalled_a_number_earlier_is_not_the_end():
    """A ring: rank 3 is stopped, rank 2 still in 12, the others in 13 (measured on gloo)."""
    thirteen = calls("all_reduce", before=12, open=1)
    twelve = calls("all_reduce", before=11, open=1)
    made = {0: {"w": thirteen}, 1: {"w": thirteen}, 2: {"w": twelve}}
    graph = graph_of({"w": [0, 1, 2, 3]}, made, absent=[3])
    assert ends_of(graph) == [("rank", (3,))]


class CountedRanks(tuple):
    """Ranks of a point, and how often they were read."""

    reads = 0

    def __iter__(self):
        self.reads += 1
        return super().__iter__()


def test_a_path_reads_each_point_once_however_many_ranks_hold_it_up():
    """Two groups of all ranks, called in two orders: each rank of a half holds up the other."""
    even, odd, last = CountedRanks(range(0, 20, 2)), CountedRanks(range(1, 20, 2)), 20
    points = tuple(
        WaitPoint(PointKind.COLLECTIVE, 1, "all_reduce", waiting, (*missing, last), ())
        for waiting, missing in ((even, odd), (odd, even))
    )
    graph = WaitGraph(points=points, blocked_in={})
    even.reads = odd.reads = 0
    path = graph.path_to(End(EndKind.RANK, (last,), (), 20, True))
    assert path == ((19, points[1]),)
    assert (even.reads, odd.reads) == (1, 1)


# Calls that are queued: each rank executes its calls in the order in which it made them


def queued_graph_of(groups, made, *, count):
    case = a_recorded_case(ranks_in(count), groups, made)
    logs = read_collective_logs(case)
    assert logs is not None
    return build_wait_graph(logs, (), (), in_order=True)


def test_calls_queued_in_two_orders_are_a_cycle_although_every_rank_has_made_them():
    made = {0: {"a": QUEUED, "b": QUEUED}, 1: {"b": QUEUED, "a": QUEUED}}
    graph = queued_graph_of({"a": [0, 1], "b": [0, 1]}, made, count=2)
    assert ends_of(graph) == [("cycle", (0, 1))]
    assert [(point.waiting, point.missing) for point in graph.points] == [
        ((0,), (1,)),
        ((1,), (0,)),
    ]


def test_calls_queued_in_three_orders_of_three_pairs_are_a_cycle():
    groups = {"a": [0, 1], "b": [1, 2], "c": [0, 2]}
    made = {
        0: {"a": QUEUED, "c": QUEUED},
        1: {"b": QUEUED, "a": QUEUED},
        2: {"c": QUEUED, "b": QUEUED},
    }
    assert ends_of(queued_graph_of(groups, made, count=3)) == [("cycle", (0, 1, 2))]


def test_calls_queued_in_one_order_wait_for_no_rank():
    made = {rank: {"a": QUEUED, "b": QUEUED} for rank in (0, 1)}
    graph = queued_graph_of({"a": [0, 1], "b": [0, 1]}, made, count=2)
    assert ends_of(graph) == [("point", (0, 1))]


def test_a_rank_that_has_completed_a_call_does_not_hold_it_up():
    over = calls("all_reduce all_reduce", queued=True)
    made = {0: {"a": QUEUED, "b": QUEUED}, 1: {"b": QUEUED, "a": over}}
    graph = queued_graph_of({"a": [0, 1], "b": [0, 1]}, made, count=2)
    assert ends_of(graph) == [("point", (0,))]


def reachable(edges, start):
    seen, queue = {start}, [start]
    while queue:
        for target in edges[queue.pop()]:
            if target not in seen:
                seen.add(target)
                queue.append(target)
    return seen


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 9))
    nodes = st.integers(0, count - 1)
    return [draw(st.lists(nodes, max_size=4)) for _ in range(count)]


@given(graphs())
def test_two_nodes_share_a_component_when_each_reaches_the_other(edges):
    component_of, components = find_components(edges)
    reach = [reachable(edges, node) for node in range(len(edges))]
    for one in range(len(edges)):
        for other in range(len(edges)):
            together = other in reach[one] and one in reach[other]
            assert (component_of[one] == component_of[other]) == together
    assert sorted(node for nodes in components for node in nodes) == list(range(len(edges)))


@given(graphs())
def test_a_component_comes_after_those_it_points_to(edges):
    component_of, _ = find_components(edges)
    for node, targets in enumerate(edges):
        assert all(component_of[target] <= component_of[node] for target in targets)


def test_a_deep_chain_needs_no_recursion():
    count = 50_000
    edges = [[node + 1] for node in range(count - 1)] + [[]]
    _, components = find_components(edges)
    assert components[0] == [count - 1]
    assert len(components) == count
