"""When a verdict is handed over to what drains nodes, and each guard that holds it back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchtower.incidents.handover import Blamed, Guards, Handover, decide
from watchtower.wire.verdict import Domain

FAULT = Blamed(
    incident="01K",
    cause="gpu_fault",
    domain=Domain.GPU,
    confidence=0.93,
    nodes=("n2", "n2"),
    age_s=120.0,
)
GUARDS = Guards()


def hand_over(
    *incidents: Blamed, node: str = "n2", is_silenced: bool = False, guards: Guards = GUARDS
) -> Handover:
    return decide(node, incidents, node_count=40, is_silenced=is_silenced, guards=guards)


def test_a_sure_verdict_about_one_node_is_handed_over_with_its_reason() -> None:
    assert hand_over(FAULT) == Handover(acts=True, reason="watchtower: gpu_fault incident 01K")
    assert hand_over(FAULT, node="n1") == Handover(acts=False, reason="")
    assert hand_over() == Handover(acts=False, reason="")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"is_shadow": True}, "shadow"),
        ({"was_right": False}, "was wrong"),
        ({"confidence": 0.79}, "79%, below 80%"),
        ({"nodes": ("n2", "n3")}, "ranks on 2 nodes"),
        ({"age_s": 59.0}, "evidence may still arrive"),
    ],
)
def test_each_doubt_holds_it_back_and_is_named(change, text: str) -> None:
    found = hand_over(replace(FAULT, **change))
    assert not found.acts
    assert text in " ".join(found.held)
    assert found.reason


@pytest.mark.parametrize(
    "change", [{"domain": Domain.USER_CODE}, {"domain": Domain.NETWORK}, {"age_s": 90_000.0}]
)
def test_an_incident_about_something_else_or_of_another_day_says_nothing(change) -> None:
    assert hand_over(replace(FAULT, **change)) == Handover(acts=False, reason="")


def test_a_person_overrides_it_and_it_may_only_observe() -> None:
    assert not hand_over(FAULT, is_silenced=True).acts
    assert hand_over(replace(FAULT, was_right=True)).acts
    observed = hand_over(FAULT, guards=replace(GUARDS, observes=True))
    assert (observed.acts, observed.held) == (False, ("observe mode",))


def test_only_the_nodes_that_were_blamed_first_are_drained() -> None:
    many = [
        replace(FAULT, incident=f"{n}", nodes=(f"n{n}",), age_s=1000.0 - n) for n in range(1, 6)
    ]
    acting = [each.nodes[0] for each in many if hand_over(*many, node=each.nodes[0]).acts]
    assert acting == ["n1", "n2"]  # 5 % of 40 nodes
    assert "2 of 40 nodes" in hand_over(*many, node="n3").held[0]
    unsure = [replace(each, confidence=0.5) for each in many[:2]]
    assert hand_over(*unsure, *many[2:], node="n3").acts


def test_one_node_of_a_small_cluster_may_be_drained() -> None:
    assert decide("n2", [FAULT], node_count=2, is_silenced=False, guards=GUARDS).acts
    assert decide("n2", [FAULT], node_count=0, is_silenced=False, guards=GUARDS).acts
