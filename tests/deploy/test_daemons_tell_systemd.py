"""The tower's unit asks for its stacks when its watchdog ends it."""

from __future__ import annotations

import re
from pathlib import Path


def unit_environment(unit: str) -> dict[str, str]:
    text = (Path(__file__).parents[2] / f"deploy/systemd/{unit}.service").read_text("utf-8")
    return dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))


def test_the_tower_s_unit_asks_for_stacks_too():
    assert unit_environment("watchtower-tower") == unit_environment("watchtower-agent") != {}
