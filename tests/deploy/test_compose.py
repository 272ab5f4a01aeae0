"""deploy/compose: its files are there, and its parts reach each other with the rights of units."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from agent.cli import build_parser
from deploy.images.build import IMAGES
from tests.deploy.test_kubernetes import read_config
from tests.deploy.test_units import settings
from watchtower.cli import make_parser

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/compose"
FILE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OWN = ("tower", "agent", "drill")


def mounts_of(service: str) -> dict[str, Path | None]:
    """What is at each path of a container: a file of the repository, or None."""
    found: dict[str, Path | None] = {}
    for volume in SERVICES[service].get("volumes", []):
        source, target, *_ = volume.split(":")
        found[target] = (FOLDER / source).resolve() if source.startswith(".") else None
        assert found[target] or source in FILE["volumes"]
    for config in SERVICES[service].get("configs", []):
        assert config["source"] in FILE["configs"]
        found[config["target"]] = None
    return found


@pytest.mark.parametrize("service", SERVICES)
def test_every_file_that_a_service_mounts_is_there_and_no_port_is_open_to_others(service: str):
    assert all(path is None or path.exists() for path in mounts_of(service).values())
    for port in SERVICES[service].get("ports", []):
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("service", OWN)
def test_our_services_have_our_images_of_this_version_and_may_do_nothing_else(service: str):
    name, _, version = SERVICES[service]["image"].partition(":")
    assert name in IMAGES
    (default,) = re.findall(r"^\$\{WATCHTOWER_VERSION:-(.+)\}$", version)
    assert f'\nversion = "{default}"\n' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert SERVICES[service]["read_only"]
    assert SERVICES[service]["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in SERVICES[service]["security_opt"]


@pytest.mark.parametrize("service", ["agent", "tower"])
def test_rights_and_limits_are_those_of_the_unit(service: str):
    unit = settings(f"watchtower-{service}")
    wanted = unit["CapabilityBoundingSet"].replace("CAP_", "").split()
    assert SERVICES[service].get("cap_add", []) == wanted
    assert SERVICES[service]["mem_limit"].upper() == unit["MemoryMax"]


def test_the_commands_of_images_and_services_exist():
    parsers = {"watchtower-tower": make_parser(), "watchtower-agent": build_parser()}
    for name, image in IMAGES.items():
        parsers[name].parse_args(image["Cmd"])
    agent = build_parser().parse_args(SERVICES["agent"]["command"])
    assert agent.spool_dir in mounts_of("agent")
    assert make_parser().parse_args(SERVICES["drill"]["command"]).stay


def test_the_tower_takes_its_settings_and_answers_to_agent_and_prometheus(tmp_path: Path):
    config = read_config(FILE["configs"]["tower"]["content"], tmp_path)
    assert config.data_dir in mounts_of("tower")
    assert IMAGES["watchtower-tower"]["Cmd"][-1] in mounts_of("tower")
    url = urlsplit(SERVICES["agent"]["environment"]["WATCHTOWER_URL"])
    assert url.hostname in SERVICES
    assert url.hostname in config.allowed_hosts
    assert url.port == config.port


def test_prometheus_alertmanager_and_grafana_find_each_other_with_the_files_that_all_use():
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8"))
    (managers,) = prometheus["alerting"]["alertmanagers"]
    source = ROOT / "dashboards/provisioning/datasources/watchtower.yaml"
    (grafana,) = yaml.safe_load(source.read_text("utf-8"))["datasources"]
    tower, agents = prometheus["scrape_configs"]
    named = [
        *tower["static_configs"][0]["targets"],
        *managers["static_configs"][0]["targets"],
        urlsplit(grafana["url"]).netloc,
        *json.loads(FILE["configs"]["agents"]["content"])[0]["targets"],
    ]
    assert named == ["tower:19660", "alertmanager:9093", "prometheus:9090", "agent:19650"]
    mounted = {Path(path).name for path in mounts_of("prometheus")}
    files = [*prometheus["rule_files"], *agents["file_sd_configs"][0]["files"]]
    assert set(files) <= mounted
