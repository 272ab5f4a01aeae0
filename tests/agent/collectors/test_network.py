"""Network interfaces: counters, lost links, bursts of errors, and nodes without interfaces."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.collectors.network import ERRORS, MAX_INTERFACES, UP, Network
from watchtower.wire.observations import Observation

HEAD = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop |bytes packets\n"


class Nics:
    """The network interfaces below a root of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.table: dict[str, tuple[int, int]] = {}
        (root / "proc/net").mkdir(parents=True)
        self.network = Network(str(root))

    def write(
        self,
        name: str = "eth1",
        *,
        state: str = "up",
        changes: int = 2,
        errors: int = 0,
        mb: int = 5,
    ) -> None:
        folder = self.root / "sys/class/net" / name
        (folder / "device").mkdir(parents=True, exist_ok=True)
        (folder / "operstate").write_text(f"{state}\n")
        (folder / "mtu").write_text("9000\n")
        (folder / "carrier_changes").write_text(f"{changes}\n")
        self.table[name] = mb * 1_000_000, errors
        lines = [
            f"{name:>6}: {size} 10 {bad} 3 0 0 0 0 {size * 2} 10 0 0 0 0 0 0\n"
            for name, (size, bad) in self.table.items()
        ]
        (self.root / "proc/net/dev").write_text(HEAD + "".join(lines))

    def collect(self, now: float) -> list[Observation]:
        return list(self.network.collect(now))

    def values(self) -> dict[tuple[str, ...], float]:
        samples = self.network.samples(0.0)
        return {(each.spec.name, *each.labels): each.value for each in samples}


@pytest.fixture
def nics(tmp_path: Path) -> Nics:
    return Nics(tmp_path)


def test_an_interface_has_its_counters_and_says_nothing_while_it_works(nics: Nics):
    nics.write(errors=7)
    assert nics.collect(1.0) == []
    assert nics.values() == {
        ("watchtower_nic_up", "eth1"): 1.0,
        ("watchtower_nic_mtu_bytes", "eth1"): 9000,
        ("watchtower_nic_bytes_total", "eth1", "received"): 5_000_000,
        ("watchtower_nic_bytes_total", "eth1", "sent"): 10_000_000,
        ("watchtower_nic_errors_total", "eth1", "receive"): 7,
        ("watchtower_nic_errors_total", "eth1", "receive_dropped"): 3,
        ("watchtower_nic_errors_total", "eth1", "send"): 0,
        ("watchtower_nic_errors_total", "eth1", "send_dropped"): 0,
    }
    assert nics.network.can_read
    assert nics.network.gap() == ""


def test_a_link_that_was_down_before_the_agent_started_is_not_reported(nics: Nics):
    nics.write(state="down")
    assert nics.collect(1.0) == []
    assert nics.values()[UP.name, "eth1"] == 0.0


def test_a_lost_link_is_reported_with_its_age_until_it_is_old(nics: Nics):
    nics.write()
    nics.collect(1.0)
    nics.write(state="down", changes=3)
    nics.collect(2.0)
    (lost,) = nics.collect(7.0)
    assert (lost.subject, lost.name, lost.age_s) == ("nic:eth1", "nic_link_lost", 5.0)
    assert lost.text == "eth1 lost its link and does not have it now"
    nics.write(state="up", changes=4)
    (back,) = nics.collect(8.0)
    assert back.text == "eth1 lost its link and has it again"
    assert nics.collect(8.0 + 901.0) == []


def test_a_link_that_was_lost_between_two_reads_is_reported(nics: Nics):
    nics.write(changes=2)
    nics.collect(1.0)
    nics.write(changes=8)
    (lost,) = nics.collect(2.0)
    assert (lost.value, lost.text) == (3.0, "eth1 lost its link 3 times and has it again")


def test_a_burst_of_errors_is_reported_and_single_errors_are_not(nics: Nics):
    nics.write(errors=0)
    nics.collect(1.0)
    nics.write(errors=9)
    assert nics.collect(2.0) == []
    nics.write(errors=509)
    (burst,) = nics.collect(3.0)
    assert (burst.name, burst.value) == ("nic_errors", 500.0)


def test_numbers_that_no_interface_can_have_fail_nothing(nics: Nics):
    nics.write()
    nics.collect(1.0)
    nics.write(changes=10**60, errors=10**30)
    assert {each.name for each in nics.collect(2.0)} == {"nic_link_lost", "nic_errors"}


def test_counters_that_begin_again_are_no_error_and_no_lost_link(nics: Nics):
    nics.write(errors=90_000, changes=8, mb=900)
    nics.collect(1.0)
    nics.write(errors=100, changes=2, mb=1)
    assert nics.collect(2.0) == []
    assert nics.values()[ERRORS.name, "eth1", "receive"] == 100


def test_an_interface_without_a_device_is_left_out(nics: Nics):
    nics.write("lo")
    (nics.root / "sys/class/net/lo/device").rmdir()
    assert nics.collect(1.0) == []
    assert nics.network.is_absent
    assert not nics.network.can_read
    assert nics.network.gap() == ""


def test_an_interface_that_was_removed_is_forgotten(nics: Nics):
    nics.write()
    nics.write("eth2")
    nics.collect(1.0)
    (nics.root / "sys/class/net/eth2/mtu").unlink()
    nics.collect(2.0)
    assert {labels[0] for _, *labels in nics.values()} == {"eth1"}


@pytest.mark.parametrize(
    "table", ["", "x", HEAD, HEAD + "eth1 no colon\n", HEAD + "eth1: 1 2\n", HEAD + "e: x " * 40]
)
def test_a_table_in_another_form_is_a_gap_or_nothing(nics: Nics, table: str):
    nics.write()
    (nics.root / "proc/net/dev").write_text(table)
    assert nics.collect(1.0) == []
    assert bool(nics.network.gap()) == ("e" in table[len(HEAD) :])


def test_there_is_a_bound_of_interfaces(nics: Nics):
    for index in range(MAX_INTERFACES + 8):
        nics.write(f"eth{index}")
    nics.collect(1.0)
    assert len({labels[0] for _, *labels in nics.values()}) == MAX_INTERFACES


def test_this_node_can_be_read():
    network = Network()
    assert list(network.collect(time.monotonic())) == []
    assert network.gap() == ""
    assert network.can_read or network.is_absent
