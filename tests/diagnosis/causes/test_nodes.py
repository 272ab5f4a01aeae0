"""node_lost: a node that fell silent with the job, told from an agent that died alone."""

from dataclasses import replace

from tests.diagnosis.builders import (
    FETCHING,
    a_case,
    a_dead_rank,
    a_rank,
    a_silent_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import answer_of_case, ask, ask_of_case, reasons_of
from watchtower.diagnosis.causes.node_lost import find_lost_nodes
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.evidence.case import Case, NodeEvidence

LOST = [a_silent_rank(rank) for rank in range(4, 8)]
RESET = "RuntimeError: Connection closed by peer [10.0.0.4]:17221"


def silent(case: Case, seconds: float, node: str = "gpu-01") -> Case:
    """The same case, in which a node has not reported for so long."""
    return replace(
        case,
        nodes=tuple(
            replace(known, silent_for_s=seconds) if known.node == node else known
            for known in case.nodes
        ),
    )


def test_all_ranks_of_a_node_that_fell_silent_with_the_job():
    case = silent(a_case(with_rank(ranks_in(8), *LOST), stalled_for_s=12), 12.4)
    assert answer_of_case(case) == ("node_lost", [4, 5, 6, 7])
    diagnosis = diagnose(case)
    assert all(value in diagnosis.summary for value in ("gpu-01", "12 s", "4-7"))
    assert diagnosis.waiting == "0-3"
    assert len(diagnosis.next_steps) > 1  # the agent alone may be gone


def test_a_node_is_named_before_it_counts_as_silent():
    unheard = [a_rank(rank, dumps=0) for rank in range(4, 8)]
    case = silent(a_case(with_rank(ranks_in(8), *unheard), stalled_for_s=6), 5.5)
    assert answer_of_case(case) == ("node_lost", [4, 5, 6, 7])
    assert (
        diagnose(case).confidence
        < diagnose(silent(a_case(with_rank(ranks_in(8), *LOST)), 9)).confidence
    )


def test_two_late_reports_are_nothing():
    unheard = [a_rank(rank, dumps=0) for rank in range(4, 8)]
    assert answer_of_case(silent(a_case(with_rank(ranks_in(8), *unheard)), 2.2)) == ("unknown", [])


def test_an_agent_that_died_while_the_job_still_stepped_proves_nothing():
    case = silent(a_case(with_rank(ranks_in(8), *LOST), stalled_for_s=12), 300.0)
    assert answer_of_case(case) == ("unknown", [])
    assert "node_lost" in {other.cause.value for other in diagnose(case).alternatives}


def test_a_rank_that_answers_and_is_behind_wins():
    built = with_rank(ranks_in(8), a_rank(1, FETCHING, syscall="read"), *LOST)
    assert answer_of_case(silent(a_case(built), 9)) == ("dataloader_stall", [1])


def test_what_was_seen_before_the_agent_fell_silent_still_counts():
    built = with_rank(
        ranks_in(8), *[a_rank(r, presence=LOST[0].evidence.presence) for r in (4, 5, 7)]
    )
    stuck = a_rank(6, FETCHING, syscall="read", presence=LOST[0].evidence.presence)
    assert answer_of_case(silent(a_case(with_rank(built, stuck)), 5)) == ("dataloader_stall", [6])


def test_peers_that_lost_their_connections_are_not_the_culprits():
    dead = [a_dead_rank(rank, error=RESET, age_s=2.5) for rank in range(4)]
    case = silent(a_case([*dead, *LOST], stalled_for_s=11), 11)
    assert answer_of_case(case) == ("node_lost", [4, 5, 6, 7])


def test_a_death_of_its_own_on_a_node_that_answers_wins():
    built = with_rank(ranks_in(8), a_dead_rank(2, code=3), *LOST)
    assert answer_of_case(silent(a_case(built), 11))[0] == "process_died"


def test_nobody_waits_and_nobody_died():
    built = with_rank(ranks_in(8, FETCHING), *LOST)
    assert ask("node_lost", built) is None


def test_several_nodes_are_named_together():
    built = [*ranks_in(4), *[a_silent_rank(rank) for rank in range(4, 32)]]
    case = a_case(built, stalled_for_s=12)
    nodes = tuple(
        node if node.node == "gpu-00" else replace(node, silent_for_s=12.0) for node in case.nodes
    )
    asked = ask_of_case("node_lost", replace(case, nodes=nodes))
    shown = [text.split()[1] for text in reasons_of(asked, "node")]
    assert shown == [f"gpu-0{node}" for node in range(1, 8)]
    assert len(asked.suspects) == 28


def test_the_interval_of_the_agent_is_its_measure():
    unheard = [a_rank(rank, dumps=0) for rank in range(4, 8)]
    built = with_rank(ranks_in(8), *unheard)
    case = a_case(built)
    slow = NodeEvidence(node="gpu-01", silent_for_s=9.0, interval_s=5.0)
    case = replace(case, nodes=(case.nodes[0], slow))
    assert find_lost_nodes(take_picture(case)) == ()
