"""The Ansible role: its variables, files, options and services exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from agent.cli import build_parser
from tests.deploy.test_units import UNITS, settings
from watchtower.cli import make_parser

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/ansible"
ROLE = FOLDER / "roles/watchtower"


def read(name: str) -> Any:
    return yaml.safe_load((ROLE / f"{name}/main.yml").read_text("utf-8"))


TASKS: list[dict[str, Any]] = read("tasks")
DEFAULTS: dict[str, Any] = read("defaults")
TEXT = (ROLE / "tasks/main.yml").read_text("utf-8")


def test_every_variable_has_a_default_or_is_made_by_the_task() -> None:
    for task in TASKS:
        used = set(re.findall(r"\b(watchtower_\w+)", str(task)))
        assert used <= DEFAULTS.keys() | task.get("vars", {}).keys(), task["name"]
    unused = DEFAULTS.keys() - set(re.findall(r"\b(watchtower_\w+)", TEXT))
    assert not unused


def test_every_task_has_one_full_module_and_tells_a_handler_that_exists() -> None:
    names = {handler["name"] for handler in read("handlers")}
    for task in TASKS:
        assert len([key for key in task if key.startswith("ansible.builtin.")]) == 1
        assert task.get("notify") in {None, *names}


def test_its_paths_are_those_of_units_and_packages() -> None:
    units = "".join(path.read_text("utf-8") for path in UNITS.iterdir())
    for path in re.findall(r"/(?:etc/watchtower|run/credentials)/[\w./-]*\w", TEXT):
        assert path in units or path == "/etc/watchtower/ca.pem", path
    variables = re.search(r"^      WATCHTOWER_URL:.*", TEXT, re.M | re.S)
    assert variables
    known = (UNITS / "agent.env").read_text("utf-8")
    for name in re.findall(r"^      ([A-Z_]+):", variables[0], re.MULTILINE):
        assert f"\n{name}=" in known
    assert settings("watchtower-agent")["EnvironmentFile"] in TEXT


def test_the_options_that_it_writes_and_runs_exist() -> None:
    options = re.findall(r"'(--[a-z-]+) (\S+)(?: if)?' if", TEXT)
    assert len(options) == 2
    for option, value in options:
        build_parser().parse_args(["run", "--tower", "https://t", option, value])
    assert make_parser().parse_args(["serve", "--check", "--config", "x"]).check


def test_the_version_is_that_of_the_distribution_and_the_playbook_knows_both_parts() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f'\nversion = "{DEFAULTS["watchtower_version"]}"\n' in project
    plays = yaml.safe_load((FOLDER / "site.yml").read_text("utf-8"))
    parts = [role["vars"]["watchtower_part"] for play in plays for role in play["roles"]]
    assert {f"watchtower-{part}.service" for part in parts} == {
        path.name for path in UNITS.glob("*.service")
    }
