"""A path between two ranks on which nothing gets through: its ends, and their MTUs."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import FETCHING, IN_ALL_REDUCE, a_case, a_rank, ranks_in, with_rank
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Presence
from watchtower.wire.connections import Connection, LocalAddress, RankNetwork

RANKS, SENDER, RECEIVER = 4, 1, 2
PORT = 5000


def address_of(rank):
    return f"10.0.0.{rank + 1}"


def stalled(receiver, *, sender=SENDER, tries=5, **values):
    """Return a connection of a rank on which nothing gets through."""
    values = {"pause_s": 6.4, "unanswered_bytes": 262144, **values}
    return Connection(
        local=f"{address_of(sender)}:{PORT}",
        remote=f"{address_of(receiver)}:{PORT}",
        tries=tries,
        **values,
    )


def connected(built, *troubled, before=None, mtu=9000):
    """Return a rank with its connections: the last dump has these, the first one `before`."""
    rank = built.evidence.rank
    address = LocalAddress(address=address_of(rank), interface="eth1", mtu=mtu, ports=(PORT,))
    first, last = built.evidence.dumps
    earlier = [replace(each, tries=max(0, each.tries - 1)) for each in troubled]
    dumps = (
        replace(
            first, network=RankNetwork(troubled=before or tuple(earlier), addresses=(address,))
        ),
        replace(last, network=RankNetwork(troubled=troubled, addresses=(address,))),
    )
    return replace(built, evidence=built.evidence.with_dumps(dumps))


def job(*others, mtu=9000, stack=IN_ALL_REDUCE):
    """Return the ranks of a job, all connected; two nodes have two each."""
    built = [connected(each, mtu=mtu) for each in ranks_in(RANKS, stack)]
    built = with_rank(built, *others)
    return [
        replace(each, evidence=replace(each.evidence, node=f"n{each.evidence.rank // 2}"))
        for each in built
    ]


def sender(*troubled, **values):
    return connected(a_rank(SENDER), *(troubled or (stalled(RECEIVER),)), **values)


def answer(built):
    found = diagnose(a_case(built))
    return found.cause.value, tuple(each.rank for each in found.suspects), found.domain.value


def test_two_mtus_on_a_path_where_nothing_gets_through_name_both_ends():
    built = job(sender(), connected(a_rank(RECEIVER), mtu=1500))
    assert answer(built) == ("misconfigured", (SENDER, RECEIVER), "network")
    found = diagnose(a_case(built))
    assert "eth1 of rank 1 (n0) has 9000, eth1 of rank 2 (n1) has 1500" in found.summary
    assert "10.0.0.2" in found.summary
    assert "10.0.0.3" in found.summary
    assert found.confidence > 0.9
    assert "ip link show dev eth1` on n0 and on n1" in found.next_steps[0]
    assert "ping -M do -s 8972 10.0.0.3" in found.next_steps[1]


def test_a_path_with_one_mtu_that_loses_packets_is_a_fault_of_the_fabric():
    assert answer(job(sender())) == ("fabric_fault", (SENDER, RECEIVER), "network")


def test_a_sender_that_is_blocked_in_its_own_line_is_no_other_reason():
    blocked = connected(
        a_rank(SENDER, "send_all /home/ann/job/main.py:40 < <module> /home/ann/job/main.py:80"),
        stalled(RECEIVER),
    )
    assert answer(job(blocked))[:2] == ("fabric_fault", (SENDER, RECEIVER))


HEALTHY = {
    "a retransmission": (stalled(RECEIVER, tries=1, resent=5000),),
    "many that were answered": (stalled(RECEIVER, tries=0, resent=90_000),),
    "not of this job": (replace(stalled(RECEIVER), remote="192.0.2.7:443"),),
    "not open yet": (stalled(RECEIVER, opening=True),),
}


@pytest.mark.parametrize("troubled", HEALTHY.values(), ids=HEALTHY)
@pytest.mark.parametrize("mtu", [9000, 1500])
def test_a_healthy_connection_never_decides(troubled, mtu):
    built = job(sender(*troubled), connected(a_rank(RECEIVER), mtu=mtu))
    assert answer(built)[0] == "symmetric_hang"


def test_two_mtus_alone_never_decide():
    built = job(connected(a_rank(RECEIVER), mtu=1500))
    assert answer(built)[0] == "symmetric_hang"


@pytest.mark.parametrize(
    "before",
    [
        (stalled(RECEIVER, tries=9),),
        (stalled(RECEIVER, unanswered_bytes=900_000),),
        (stalled(3),),
    ],
    ids=["answered since", "moved since", "stalled since"],
)
def test_a_connection_that_moved_between_two_dumps_never_decides(before):
    assert answer(job(sender(before=before)))[0] == "symmetric_hang"


def test_one_dump_never_decides():
    built = job(sender())
    case = a_case(built)
    ranks = [each.with_dumps(each.dumps[-1:]) for each in case.ranks]
    assert diagnose(replace(case, ranks=tuple(ranks))).cause.value != "fabric_fault"


def test_where_the_whole_network_is_cut_no_rank_is_to_blame():
    ring = [
        connected(a_rank(rank), stalled((rank + 1) % RANKS, sender=rank)) for rank in range(RANKS)
    ]
    assert answer(job(*ring))[:2] == ("symmetric_hang", ())


def test_a_cut_between_the_only_two_addresses_names_them():
    ring = [connected(a_rank(rank), stalled(1 - rank, sender=rank)) for rank in (0, 1)]
    built = [replace(e, evidence=replace(e.evidence, node=f"n{e.evidence.rank}")) for e in ring]
    assert answer(built)[:2] == ("fabric_fault", (0, 1))


def test_a_rank_that_is_elsewhere_explains_more_than_a_path_beside():
    built = job(sender(), connected(a_rank(3, FETCHING)))
    found = diagnose(a_case(built))
    assert found.cause.value == "unknown" or found.suspects[0].rank == 3


def test_a_peer_that_has_died_is_not_the_end_of_a_path():
    silent = connected(a_rank(RECEIVER))
    gone = replace(silent, evidence=replace(silent.evidence, presence=Presence.SILENT))
    assert answer(job(sender(), gone))[0] not in ("fabric_fault", "misconfigured")


def test_each_end_has_its_role():
    first, second = diagnose(a_case(job(sender()))).suspects
    assert (first.node, second.node) == ("n0", "n1")
    assert "gets no answer" in first.why
    assert "not get what rank 1 (n0) sends" in second.why
