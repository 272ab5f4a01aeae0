"""Strongly connected components, against a slow definition and on a chain that is deep."""

from hypothesis import given
from hypothesis import strategies as st

from watchtower.diagnosis.waits.graph import find_components


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
