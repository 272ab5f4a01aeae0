"""Ports of InfiniBand and RoCE, from files below a root of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.collectors.infiniband import (
    BYTES,
    ERRORS,
    EVERY_S,
    MISSING_READINGS,
    RATE,
    UP,
    Infiniband,
)
from watchtower.wire.observations import Observation

ACTIVE, DOWN = "4: ACTIVE", "1: DOWN"


class Ports:
    """The ports below a root of their own, and the collector that reads them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.collector = Infiniband(str(root))
        self.now = 100.0

    def write(
        self, device: str = "mlx5_0", state: str = ACTIVE, rate: str = "400", **counts: int
    ) -> None:
        port = self.root / "sys/class/infiniband" / device / "ports/1"
        for folder in ("counters", "hw_counters"):
            (port / folder).mkdir(parents=True, exist_ok=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text(f"{rate} Gb/sec (4X NDR)\n")
        counts = {"link_downed": 0, "port_rcv_data": 250, "port_xmit_data": 500, **counts}
        for name, count in counts.items():
            folder = "hw_counters" if name.endswith(("_err", "_events")) else "counters"
            (port / folder / name).write_text(f"{count}\n")

    def collect(self) -> dict[str, Observation]:
        """Return what the next reading shows, by name."""
        list(self.collector.collect(self.now))
        self.collector.wait(10.0)
        self.now += EVERY_S
        found = list(self.collector.collect(self.now))
        self.collector.wait(10.0)
        return {each.name: each for each in found}


@pytest.fixture
def ports(tmp_path: Path) -> Ports:
    return Ports(tmp_path)


def test_a_node_without_ports_has_nothing_to_read(tmp_path: Path):
    collector = Infiniband(str(tmp_path))
    assert list(collector.collect(5.0)) == []
    assert collector.is_absent


def test_a_port_with_old_errors_shows_its_values_and_reports_nothing(ports: Ports):
    ports.write(symbol_error=90_000, local_ack_timeout_err=7)
    assert ports.collect() == {}
    assert ports.collect() == {}
    values = {(each.spec.name, *each.labels): each.value for each in ports.collector.samples(0.0)}
    assert values[UP.name, "mlx5_0"] == 1.0
    assert values[RATE.name, "mlx5_0"] == 400.0
    assert values[BYTES.name, "mlx5_0", "sent"] == 2000.0
    assert values[ERRORS.name, "mlx5_0", "symbol_error"] == 90_000


def test_a_port_that_goes_down_is_reported_with_its_age(ports: Ports):
    ports.write()
    ports.collect()
    ports.write(state=DOWN)
    ports.collect()
    found = ports.collect()["nic_link_lost"]
    assert (found.subject, found.text) == ("nic:mlx5_0", "mlx5_0 is no longer active")
    assert found.age_s <= 2 * EVERY_S


def test_a_link_that_was_lost_between_two_readings_is_reported(ports: Ports):
    ports.write(link_downed=3)
    ports.collect()
    ports.write(link_downed=4)
    ports.collect()
    assert ports.collect()["nic_link_lost"].text == "mlx5_0 lost its link and has it again"


def test_a_port_that_was_never_active_is_not_lost(ports: Ports):
    ports.write(state=DOWN)
    for _ in range(3):
        assert ports.collect() == {}


@pytest.mark.parametrize(
    ("counter", "many", "few", "name"),
    [
        ("port_rcv_errors", 300, 50, "nic_errors.port_rcv_errors"),
        ("symbol_error", 300, 50, "nic_errors.symbol_error"),
        ("rnr_nak_retry_err", 1, 0, "nic_errors.rnr_nak_retry_err"),
        ("local_ack_timeout_err", 40, 5, "nic_far_end.local_ack_timeout_err"),
        ("unresponsive_remote_events", 1, 0, "nic_far_end.unresponsive_remote_events"),
    ],
)
def test_errors_count_from_their_threshold_on(ports: Ports, counter, many, few, name):
    ports.write(**{counter: 70})
    ports.collect()
    ports.write(**{counter: 70 + few})
    ports.collect()
    assert ports.collect() == {}
    ports.write(**{counter: 70 + few + many})
    ports.collect()
    assert list(ports.collect()) == [name]


def test_counters_that_begin_again_show_nothing(ports: Ports):
    ports.write(port_rcv_errors=90_000)
    ports.collect()
    ports.write(port_rcv_errors=0)
    ports.collect()
    assert ports.collect() == {}


def test_a_port_that_is_slower_than_most_is_shown(ports: Ports):
    for device in ("mlx5_0", "mlx5_1", "mlx5_2"):
        ports.write(device)
    ports.write("mlx5_3", rate="100")
    ports.collect()
    found = ports.collect()["nic_rate"]
    assert found.text == "mlx5_3 runs at 100 Gbit/s, the other ports at 400"


def test_two_rates_that_are_as_frequent_are_ordinary(ports: Ports):
    ports.write("mlx5_0")
    ports.write("mlx5_1", rate="100")
    ports.collect()
    assert ports.collect() == {}


def test_a_port_that_disappears_is_lost_after_some_readings(ports: Ports):
    ports.write()
    ports.write("mlx5_1")
    ports.collect()
    (ports.root / "sys/class/infiniband/mlx5_0/ports/1/state").unlink()
    found = {}
    for _ in range(MISSING_READINGS + 1):
        found = ports.collect()
    assert found["nic_link_lost"].text == "mlx5_0 has disappeared"


def test_nonsense_in_the_files_is_left_out(ports: Ports):
    ports.write(rate="NDR")
    (ports.root / "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error").write_text("many\n")
    ports.collect()
    assert ports.collect() == {}
    assert ports.collector.can_read
