"""The unit files: hardened, and naming what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.children import MAX_TOOL_MEMORY_BYTES
from agent.dumpers.python_stacks import PY_SPY_AT_ONCE
from watchtower.service.toml_tables import parse_toml

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
AGENT_AT_REST_BYTES = 29 << 20
MAX_EXPOSURE = {"watchtower-agent": 3.3, "watchtower-tower": 2.0}
"""0 is sealed, 10 is wide open; the daemons people run today have 9.2 and more."""


def settings(unit: str) -> dict[str, str]:
    text = (UNITS / f"{unit}.service").read_text("utf-8")
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


@pytest.mark.parametrize("unit", MAX_EXPOSURE)
def test_the_watchdog_waits_for_several_checks_and_the_stop_for_what_both_promise(unit: str):
    found = settings(unit)
    assert found["Type"] == "notify"
    assert int(found["WatchdogSec"].rstrip("s")) >= 30
    assert 5 < int(found["TimeoutStopSec"].rstrip("s")) <= 15


def test_the_agent_has_four_capabilities_and_the_tower_none():
    wanted = "CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_SYSLOG CAP_PERFMON"
    agent, tower = settings("watchtower-agent"), settings("watchtower-tower")
    assert (agent["CapabilityBoundingSet"], agent["AmbientCapabilities"]) == (wanted, wanted)
    assert (tower["CapabilityBoundingSet"], tower["AmbientCapabilities"]) == ("", "")


@pytest.mark.parametrize(
    "name", ["ProtectProc", "ProcSubset", "PrivateUsers", "PrivateTmp", "PrivateDevices"]
)
def test_nothing_hides_the_training_processes_from_the_agent(name: str):
    assert name not in settings("watchtower-agent")


def test_tools_at_their_limit_of_memory_fit_beside_the_agent_and_their_end_is_not_its_end():
    found = settings("watchtower-agent")
    assert found["OOMPolicy"] == "continue"
    tools = PY_SPY_AT_ONCE * MAX_TOOL_MEMORY_BYTES
    assert int(found["MemoryMax"].rstrip("M")) << 20 >= tools + AGENT_AT_REST_BYTES


def test_the_end_of_a_diagnosing_process_is_not_the_end_of_the_tower():
    assert settings("watchtower-tower")["OOMPolicy"] == "continue"


def test_the_agent_s_user_is_made_before_it_is_needed():
    made = (UNITS / "watchtower-agent.sysusers").read_text("utf-8")
    assert re.search(rf"^u {settings('watchtower-agent')['User']} ", made, re.MULTILINE)


def test_the_units_start_the_programs_of_this_project():
    scripts = (ROOT / "pyproject.toml").read_text("utf-8")
    for unit in MAX_EXPOSURE:
        program = Path(settings(unit)["ExecStart"].split()[0])
        assert re.search(rf"^{program.name} = ", scripts, re.MULTILINE)


def test_the_secrets_that_the_tower_is_to_read_are_those_that_its_unit_hands_over():
    """With the marks off both files, as docs/install.md says."""
    text = (UNITS / "tower.toml").read_text("utf-8")
    table = parse_toml(re.sub(r"(?m)^#(?=\w+ = )", "", text))["tower"]
    unit = (UNITS / "watchtower-tower.service").read_text("utf-8")
    handed = dict(re.findall(r"^#LoadCredential=([\w.-]+):(\S+)$", unit, re.MULTILINE))
    named = {name: path for name, path in table.items() if name.endswith("_file") or "tls" in name}
    assert set(named) == {
        *(f"{scope}_token_file" for scope in ("agent", "reader", "operator")),
        "tls_cert",
        "tls_key",
    }
    folder = "/run/credentials/watchtower-tower.service/"
    assert sorted(named.values()) == sorted(folder + name for name in handed)
    assert handed == {name: f"/etc/watchtower/{name}" for name in handed}
    guide = (ROOT / "docs" / "install.md").read_text("utf-8")
    for name, path in handed.items():
        assert f"\nLoadCredential={name}:{path}\n" in guide
