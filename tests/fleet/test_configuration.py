"""Configurations by digest: what the tower keeps, and in what ranks and nodes differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchtower.fleet import configuration
from watchtower.fleet.configuration import NOT_SET, Configurations, Weight, compare, weigh
from watchtower.wire.configuration import Configuration
from watchtower.wire.report import RankVitals, Report


def a_report(*digests, bodies=(), node=""):
    ranks = tuple(
        RankVitals(job="j", rank=n, pid=n + 1, start_time=1, configuration=digest)
        for n, digest in enumerate(digests)
    )
    return Report(
        version=1,
        node="n",
        agent_id="a",
        interval_s=1.0,
        ranks=ranks,
        bodies=tuple(bodies),
        configuration=node,
    )


A, B = (
    Configuration.of({"NCCL_ALGO": "Ring"}),
    Configuration.of({"NCCL_ALGO": "Tree", "UCX_X": "1"}),
)


def test_a_body_is_asked_for_until_it_comes_and_then_serves_every_node():
    known = Configurations()
    assert known.take(a_report(A.digest, A.digest, node=B.digest)) == tuple(
        sorted((A.digest, B.digest))
    )
    assert known.take(a_report(A.digest, bodies=[A])) == ()
    assert known.take(a_report(A.digest)) == ()
    assert known.find(A.digest) == {"NCCL_ALGO": "Ring"}
    assert known.take(a_report("")) == ()


def test_a_wrong_body_is_not_taken():
    known = Configurations()
    forged = replace(A, values=B.values)
    assert known.take(a_report(A.digest, bodies=[forged])) == (A.digest,)


def test_the_oldest_bodies_are_dropped(monkeypatch):
    monkeypatch.setattr(configuration, "MAX_BODIES", 2)
    known = Configurations()
    bodies = [Configuration.of({"NCCL_X": str(n)}) for n in range(3)]
    known.take(a_report(bodies=bodies))
    assert [known.find(each.digest) is not None for each in bodies] == [False, True, True]
    monkeypatch.setattr(configuration, "MAX_BYTES", 300)
    known.take(a_report(bodies=[A]))
    assert known.find(A.digest) is not None
    assert known.find(bodies[2].digest) is None


def known_ab():
    known = Configurations()
    known.take(a_report(bodies=[A, B]))
    return known


def test_the_odd_one_out_is_found():
    found = {
        each.name: each
        for each in compare([(0, A.digest), (1, A.digest), (2, B.digest)], known_ab())
    }
    assert found["NCCL_ALGO"].groups == (("Ring", (0, 1)), ("Tree", (2,)))
    assert found["NCCL_ALGO"].odd == (2,)
    assert found["UCX_X"].groups == ((NOT_SET, (0, 1)), ("1", (2,)))


def test_of_two_halves_none_is_odd_and_equal_ones_do_not_differ():
    (first, _) = compare([(0, A.digest), (1, B.digest)], known_ab())
    assert first.differs
    assert first.odd == ()
    (only,) = compare([(0, A.digest), (1, A.digest), (2, "unknown"), (3, "")], known_ab())
    assert not only.differs


def test_what_is_not_known_of_a_member_does_not_differ():
    one = Configuration.of({"mtu eth0": "9000", "nccl": "2.27.3"})
    other = Configuration.of({"mtu eth1": "9000", "declared lr": "1"})
    known = Configurations()
    known.take(a_report(bodies=[one, other]))
    assert not any(
        each.differs for each in compare([("a", one.digest), ("b", other.digest)], known)
    )


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("MASTER_ADDR", Weight.MEETING),
        ("WORLD_SIZE", Weight.MEETING),
        ("NCCL_ALGO", Weight.FATAL),
        ("nccl", Weight.FATAL),
        ("CUDA_VISIBLE_DEVICES", Weight.NORMAL),
        ("cpus", Weight.NORMAL),
        ("NCCL_DEBUG_FILE", Weight.NORMAL),
        ("NCCL_IB_HCA", Weight.SUSPICIOUS),
        ("mtu eth0", Weight.SUSPICIOUS),
        ("torch", Weight.SUSPICIOUS),
    ],
)
def test_what_a_difference_means(name, weight):
    assert weigh(name) is weight


def test_equal_configurations_of_thousands_are_compared_once():
    members = [(rank, A.digest) for rank in range(16_384)]
    (only,) = compare(members, known_ab())
    assert len(only.groups[0][1]) == 16_384
