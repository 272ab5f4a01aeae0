"""misconfigured: ranks that look for each other by different settings."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_INIT,
    IN_TORCH_INIT,
    a_missing_rank,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import answer, ask
from tests.diagnosis.causes.test_startup import IN_TORCH_GROUP, kept_out
from watchtower.wire.connections import LocalAddress, RankNetwork
from watchtower.wire.dumps import Setting

USUAL = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "8"}
REFUSED = {"syscall": "clock_nanosleep", "step": None}


def has(built, **settings):
    """A rank with these settings beside the usual ones."""
    found = tuple(Setting(name=k, value=v) for k, v in {**USUAL, **settings}.items() if v)
    dumps = tuple(replace(dump, settings=found) for dump in built.evidence.dumps)
    return replace(built, evidence=replace(built.evidence, dumps=dumps))


def starting(*others, stack=IN_TORCH_GROUP, count=8):
    usual = [has(each) for each in ranks_in(count, stack, step=None)]
    host = has(a_rank(0, IN_TORCH_INIT, step=None)) if stack is IN_TORCH_GROUP else usual[0]
    return with_rank(usual, host, *others)


def test_a_rank_with_another_port_is_named_with_both_addresses():
    built = starting(has(a_rank(5, IN_TORCH_INIT, **REFUSED), MASTER_PORT="29511"))
    assert answer(built) == ("misconfigured", [5])
    summary = ask("misconfigured", built).summary
    assert "Rank 5 (gpu-01, pid 4005) has MASTER_ADDR and MASTER_PORT 10.0.0.1:29511" in summary
    assert "Ranks 0-4,6-7 have 10.0.0.1:29500" in summary
    (first, *_) = ask("misconfigured", built).next_steps
    assert "grep MASTER_`" in first
    assert "on gpu-01" in first


def test_the_ranks_of_a_node_with_another_address_are_named_together():
    apart = [has(a_rank(r, IN_TORCH_INIT, **REFUSED), MASTER_ADDR="10.0.9.9") for r in (4, 5, 6, 7)]
    assert answer(starting(*apart)) == ("misconfigured", [4, 5, 6, 7])


@pytest.mark.parametrize(
    ("name", "value"), [("WORLD_SIZE", "16"), ("TORCHELASTIC_RUN_ID", "run-7")]
)
def test_another_world_size_or_run_is_named_wherever_it_waits(name, value):
    usual = [has(each, TORCHELASTIC_RUN_ID="run-6") for each in ranks_in(8, IN_INIT, step=None)]
    odd = has(a_rank(3, IN_INIT, step=None), **{"TORCHELASTIC_RUN_ID": "run-6", name: value})
    built = with_rank(usual, odd)
    assert answer(built) == ("misconfigured", [3])
    assert f"has {name} {value}" in ask("misconfigured", built).summary


def test_a_world_size_too_large_is_not_a_rank_that_never_came():
    odd = has(a_rank(3, IN_INIT, step=None), WORLD_SIZE="10")
    gone = [a_missing_rank(8), a_missing_rank(9)]
    assert answer([*starting(odd, stack=IN_INIT), *gone]) == ("misconfigured", [3])


def test_ranks_that_connect_to_another_address_than_the_others():
    target = "tcp 10.0.0.{}:41000 -> 10.0.0.1:29500"
    built = [
        a_rank(r, IN_TORCH_GROUP, syscall="poll", target=target.format(r + 2), step=None)
        for r in range(8)
    ]
    lost = a_rank(
        5,
        IN_TORCH_INIT,
        syscall="poll",
        target="tcp 10.0.0.7:41000 -> 10.0.0.99:29500 unanswered",
        step=None,
    )
    assert answer(with_rank(built, lost)) == ("misconfigured", [5])
    summary = ask("misconfigured", with_rank(built, lost)).summary
    assert "connects to 10.0.0.99:29500" in summary
    assert "10.0.0.1:29500" in summary
    # The same address as the others have: something is between.
    assert answer(with_rank(built, kept_out(5))) == ("init_stuck", [5])


class TestInnocent:
    def test_a_rank_that_has_met_the_others_in_spite_of_another_address(self):
        """Rank 0 has a name of its own for itself; rank 5 has not joined."""
        host = has(a_rank(0, IN_TORCH_GROUP, step=None), MASTER_ADDR="localhost")
        late = has(a_rank(5, FETCHING, syscall="clock_nanosleep", step=None))
        assert answer(starting(host, late)) == ("init_stuck", [5])
        late = has(a_rank(5, IN_TORCH_INIT, **REFUSED))
        assert answer(starting(host, late)) == ("init_stuck", [5])

    def test_a_setting_of_a_rank_that_waits_for_one_that_has_not_joined(self):
        odd = has(a_rank(3, IN_TORCH_GROUP, step=None), WORLD_SIZE="16")
        late = has(a_rank(5, FETCHING, syscall="clock_nanosleep", step=None))
        assert answer(starting(odd, late)) == ("init_stuck", [5])

    def test_a_setting_that_a_rank_does_not_have(self):
        odd = has(a_rank(3, IN_TORCH_GROUP, step=None), WORLD_SIZE="")
        assert ask("misconfigured", starting(odd)) is None

    def test_equal_settings(self):
        assert ask("misconfigured", starting()) is None

    def test_a_job_that_trains(self):
        odd = has(a_rank(3, FETCHING, syscall="clock_nanosleep"), MASTER_PORT="29511")
        built = [has(each) for each in ranks_in(8)]
        assert answer(with_rank(built, odd)) == ("dataloader_stall", [3])


def refused(*ranks):
    """A job in which ranks have not reached the store, at whose port rank 0 listens."""
    built = starting(*(has(a_rank(r, IN_TORCH_INIT, **REFUSED)) for r in ranks))
    near = LocalAddress(address="10.0.0.1", interface="eth1", ports=(4000,))
    network = RankNetwork(addresses=(near,), listening=("[::]:29500",))
    dumps = tuple(replace(each, network=network) for each in built[0].evidence.dumps)
    host = replace(built[0], evidence=built[0].evidence.with_dumps(dumps))
    return [host, *built[1:]]


def test_ranks_that_a_port_refuses_are_named_with_it_and_with_the_rank_that_listens():
    built = refused(5, 6)
    found = ask("init_stuck", built)
    assert answer(built) == ("init_stuck", [5, 6])
    assert "It connects to 10.0.0.1:29500. Rank 0 (gpu-00) listens there" in found.summary
    assert "gets no answer" not in found.summary


def test_ranks_in_different_stages_of_set_up_are_told_apart_without_an_address():
    built = [*ranks_in(2, IN_TORCH_GROUP, step=None)]
    built += [a_rank(r, IN_TORCH_INIT, **REFUSED) for r in (2, 3)]
    assert answer(built) == ("init_stuck", [2, 3])
