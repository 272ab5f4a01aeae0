"""The path between two nodes: namespaces joined by a bridge, which loses what is too large."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchtower.drills.children import FIXTURES
from watchtower.drills.network import Network, why_no_network
from watchtower.service.interpreter import module_command

MISSING = why_no_network()
pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.timeout(120),
]
PROGRAMS = str(Path(sys.executable).parent)


@pytest.fixture
def network() -> Iterator[Network]:
    command = [sys.executable, "-I", str(FIXTURES / "network.py"), "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Network(**json.loads(process.stdout.readline().removeprefix("ready ")))
        process.terminate()


def run(*words: str) -> None:
    subprocess.run(words, check=True, timeout=30)


def in_bridge(network: Network, *words: str) -> None:
    run("nsenter", f"--net=/proc/{network.bridge_pid}/ns/net", *words)


def between(network: Network, *words: str) -> tuple[int, str]:
    """Test the path between the two nodes, whose names are the processes in their namespaces."""
    nodes = [str(pid) for pid in network.pids]
    through = ("--through", "nsenter --net=/proc/{node}/ns/net")
    done = subprocess.run(
        [*module_command("watchtower", "doctor", "--between", *nodes), *through, *words],
        env={**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_path_is_right_and_an_mtu_black_hole_between_the_nodes_is_found(network: Network):
    code, shown = between(network)
    assert code == 0, shown
    address = network.addresses[1]
    sound = "packets of up to 1500 bytes get through, and TCP connects"
    assert f"OK    path to {address} (eth0): {sound}\n" in shown
    in_bridge(network, "ip", "link", "set", "port1", "mtu", "1280")
    code, shown = between(network)
    assert code == 1, shown
    lost = "packets of 1500 bytes get lost, and those of 1280 get through"
    assert f"FAIL  path to {address} (eth0): {lost}\n      fix: every switch and tunnel" in shown


def test_another_mtu_at_one_end_and_a_dead_link_are_found(network: Network):
    network.lower_mtu(1, 1400)
    code, shown = between(network, "--json")
    found = json.loads(shown)
    assert (code, found["state"]) == (1, "fail")
    assert [each["text"] for each in found["results"]] == [
        "its MTU is 1400, and that of this node 1500"
    ]
    in_bridge(network, "ip", "link", "set", "port1", "down")
    code, shown = between(network)
    assert code == 1, shown
    assert "nothing gets through, neither UDP nor TCP" in shown


def test_a_node_without_the_agent_is_named(network: Network):
    code, shown = between(network, "--through", "false {node}")
    assert code == 2, shown
    assert f"did not start on {network.pids[1]}" in shown
