"""never_started, init_stuck."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_INIT,
    IN_TORCH_INIT,
    IN_USER_CODE,
    a_case,
    a_dead_rank,
    a_missing_rank,
    a_rank,
    picture_of,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import abstains, answer, ask
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import LauncherEvidence, PlaceHolder
from watchtower.wire.connections import Connection, LocalAddress, RankNetwork
from watchtower.wire.report import WaitingLauncher
from watchtower.wire.verdict import SharedCause

IN_TORCH_GROUP = (
    "_new_process_group_helper @torch/distributed/distributed_c10d.py:2169"
    " < init_process_group @torch/distributed/distributed_c10d.py:1899"
    " < _exception_logger.<locals>.wrapper @torch/distributed/c10d_logger.py:81"
    " < setup /home/ann/job/main.py:14 < <module> /home/ann/job/main.py:80"
)
"""The store is there: torch connects its ranks to each other."""


def starting(*others, count=8, stack=IN_INIT):
    return with_rank(ranks_in(count, stack, step=None), *others)


def kept_out(rank):
    target = f"tcp 10.0.0.{rank + 2}:41000 -> 10.0.0.1:29500 unanswered"
    return a_rank(rank, IN_TORCH_INIT, syscall="poll", target=target, step=None)


MASTER = "10.0.0.1"


def with_network(built, *, opening="", tries=4, address="", listening=()):
    """Return a rank with a connection that is not accepted, an address, and where it listens."""
    unopened = Connection(local="10.0.0.9:41000", remote=opening, tries=tries, opening=True)
    network = RankNetwork(
        troubled=(unopened,) if opening else (),
        addresses=(LocalAddress(address=address),) if address else (),
        listening=listening,
    )
    dumps = tuple(replace(each, network=network) for each in built.evidence.dumps)
    return replace(built, evidence=built.evidence.with_dumps(dumps))


class TestUnanswered:
    """Who should listen at an address that does not answer."""

    @pytest.mark.parametrize(
        ("host", "words"),
        [
            ({"address": MASTER, "listening": ("0.0.0.0:29500",)}, "rank 0 (gpu-00) listens there"),
            ({"address": MASTER, "listening": ("0.0.0.0:80",)}, "no rank listens there, though it"),
        ],
        ids=["listens", "another port"],
    )
    def test_is_named_as_far_as_it_is_known(self, host, words):
        built = starting(
            with_network(a_rank(0, IN_TORCH_INIT, step=None), **host),
            with_network(a_rank(5, IN_TORCH_INIT, step=None), opening=f"{MASTER}:29500"),
            stack=IN_TORCH_INIT,
        )
        assert answer(built) == ("init_stuck", [5])
        why = ask("init_stuck", built).why(picture_of(built).by_rank[5])
        assert f"its connection to {MASTER}:29500 gets no answer" in why.lower()
        assert words in why.lower()

    def test_is_nothing_known_if_the_main_thread_waits_for_another_address(self):
        host = with_network(a_rank(0, IN_TORCH_INIT, step=None), address="10.0.0.7")
        built = starting(host, kept_out(5), stack=IN_TORCH_INIT)
        why = ask("init_stuck", built).why(picture_of(built).by_rank[5])
        assert "no rank of the job is known to have this address" in why.lower()

    def test_keeps_no_rank_if_it_is_a_service_that_another_thread_calls(self):
        built = starting(
            with_network(a_rank(0, IN_TORCH_INIT, step=None), address=MASTER),
            with_network(a_rank(5, IN_TORCH_INIT, step=None), opening="192.0.2.7:443"),
            stack=IN_TORCH_INIT,
        )
        assert answer(built)[1] == []

    def test_is_not_named_after_the_first_try(self):
        waits = a_rank(5, IN_TORCH_INIT, step=None)
        waits = with_network(waits, opening=f"{MASTER}:29500", tries=1)
        assert answer(starting(waits, stack=IN_TORCH_INIT))[1] == []


class TestNeverStarted:
    def test_wins_when_the_others_wait_in_set_up(self):
        built = starting(a_missing_rank(5))
        assert answer(built) == ("never_started", [5])
        summary = ask("never_started", built).summary
        assert all(value in summary for value in ("Rank 5 of 8", "7 ranks", "init_process_group"))

    def test_several_are_named_together(self):
        built = starting(a_missing_rank(5), a_missing_rank(6), count=8)
        assert "Ranks 5-6 of 8 have not been seen" in ask("never_started", built).summary
        assert "wait for ranks 5-6" in ask("never_started", built).summary

    def test_wins_less_surely_before_any_dump(self):
        built = [a_rank(rank, dumps=0, step=None) for rank in range(7)]
        finding = ask("never_started", [*built, a_missing_rank(7)])
        assert finding.confidence == 0.75
        assert "wait for" not in finding.summary

    def test_one_waiting_rank_is_said_in_singular(self):
        assert (
            "1 rank waits for rank 1"
            in ask("never_started", [a_rank(0, IN_INIT, step=None), a_missing_rank(1)]).summary
        )

    def test_loses_once_ranks_have_stepped_without_it(self):
        built = with_rank(ranks_in(8), a_missing_rank(5))
        assert ask("never_started", built) is None

    def test_loses_when_most_ranks_are_unseen(self):
        built = [a_rank(0, IN_INIT, step=None), *(a_missing_rank(rank) for rank in range(1, 8))]
        assert abstains("never_started", built)

    def test_loses_when_all_came(self):
        assert ask("never_started", starting()) is None


class TestInitStuck:
    def test_wins_a_rank_that_sleeps_before_it_joins(self):
        late = a_rank(5, FETCHING, syscall="clock_nanosleep", step=None)
        built = starting(late, stack=IN_TORCH_INIT)
        assert answer(built) == ("init_stuck", [5])
        summary = ask("init_stuck", built).summary
        assert all(value in summary for value in ("7 ranks", "init_process_group"))

    def test_wins_a_rank_that_stays_in_set_up_while_the_others_are_further(self):
        built = with_rank(ranks_in(8), a_rank(5, IN_INIT, step=None))
        assert answer(built) == ("init_stuck", [5])
        assert ask("init_stuck", built).confidence == 0.7

    def test_wins_a_rank_whose_connection_nobody_answers(self):
        built = starting(kept_out(5), stack=IN_TORCH_INIT)
        assert answer(built) == ("init_stuck", [5])
        assert "10.0.0.1:29500" in ask("init_stuck", built).summary

    def test_wins_a_rank_that_has_not_reached_the_store_of_the_others(self):
        built = ranks_in(8, IN_TORCH_GROUP, step=None)
        refused = a_rank(5, IN_TORCH_INIT, syscall="clock_nanosleep", step=None)
        host = a_rank(0, IN_TORCH_INIT, syscall="clock_nanosleep", step=None)
        assert answer(with_rank(built, refused)) == ("init_stuck", [5])
        assert answer(with_rank(built, refused, host)) == ("init_stuck", [5])
        summary = ask("init_stuck", with_rank(built, refused, host)).summary
        assert "It sleeps between two attempts to connect. 7 ranks wait for rank 5" in summary

    def test_loses_when_only_the_host_of_the_store_is_in_it_or_all_ranks_are(self):
        built = ranks_in(8, IN_TORCH_GROUP, step=None)
        assert answer(with_rank(built, a_rank(0, IN_TORCH_INIT, step=None)))[1] == []
        assert answer(starting(stack=IN_TORCH_INIT))[1] == []

    def test_loses_when_most_ranks_have_not_reached_the_store(self):
        built = ranks_in(8, IN_TORCH_INIT, step=None)
        assert abstains("init_stuck", with_rank(built, a_rank(3, IN_TORCH_GROUP, step=None)))

    def test_loses_when_nobody_is_answered(self):
        built = [kept_out(rank) for rank in range(8)]
        assert ask("init_stuck", built) is None

    def test_loses_when_they_wait_for_one_who_does_not_come_to_their_new_group(self):
        making = [a_rank(rank, IN_TORCH_INIT) for rank in range(3)]
        for late in (a_rank(3, FETCHING), a_rank(3, state="T"), a_dead_rank(3, signal=9)):
            assert ask("init_stuck", with_rank(ranks_in(16), *making, late)) is None

    def test_loses_when_everybody_is_in_set_up(self):
        assert ask("init_stuck", starting()) is None

    def test_loses_when_nobody_is(self):
        built = with_rank(ranks_in(8, IN_ALL_REDUCE), a_rank(3, FETCHING))
        assert ask("init_stuck", built) is None

    def test_loses_when_most_are_elsewhere(self):
        built = with_rank(ranks_in(8, IN_USER_CODE, step=None), a_rank(3, IN_INIT, step=None))
        assert abstains("init_stuck", built)

    def test_loses_when_as_many_are_in_set_up_as_further(self):
        further = [a_rank(rank, IN_ALL_REDUCE) for rank in range(4)]
        assert abstains("init_stuck", starting(*further))


def launchers(*nodes, **values):
    """A job without ranks, whose launchers wait on these nodes of two."""
    waiting = WaitingLauncher(
        job="a", launcher="torchrun", pid=7, start_time=1, waits_s=200.0, nodes=2, **values
    )
    found = tuple(LauncherEvidence(node=each, launcher=waiting) for each in nodes)
    return replace(a_case([]), job="a", launchers=found)


def holder(endpoint=""):
    return (PlaceHolder(job="b", nodes=("n2",), lacks=1, endpoint=endpoint),)


def test_a_job_whose_place_another_half_started_job_holds():
    found = diagnose(replace(launchers("n1"), holders=holder()))
    assert (found.cause.value, found.domain.value) == ("never_started", "scheduler")
    assert found.summary.endswith(
        "Job b holds n2 and lacks 1 node: these jobs and this one hold each other's places."
    )
    assert found.shared_cause == SharedCause(kind="places", name="a, b")
    assert "gang scheduling" in found.next_steps[0]
    alone = diagnose(launchers("n1"))
    assert (alone.cause, alone.shared_cause) == (found.cause, None)
    assert not any("gang" in each for each in alone.next_steps)


@pytest.mark.parametrize(("endpoint", "is_one"), [("n1:29501", True), ("n1:29500", False)])
def test_two_launchers_of_one_job_may_have_two_ports(endpoint, is_one):
    case = replace(launchers("n1", endpoint="n1:29500"), holders=holder(endpoint))
    first = diagnose(case).next_steps[0]
    assert ("if they are one job" in first) is is_one
    if is_one:
        assert "they meet at n1:29500 on n1, and at n1:29501 on n2" in first


def test_a_launcher_whose_port_another_process_has():
    case = launchers("n1", ended="pid 7 (python -m http.server) listens at 127.0.0.1:29500")
    found = diagnose(case)
    assert (found.cause.value, found.suspects, found.domain.value) == (
        "misconfigured",
        (),
        "user_code",
    )
    assert "on n1 has ended before it had ranks: pid 7 (python -m http.server)" in found.summary
