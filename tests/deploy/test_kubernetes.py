"""The manifest for Kubernetes: valid for its schemas, in agreement with units and settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cli import build_parser
from tests.deploy.test_units import settings
from watchtower.access.tower_address import DEFAULT_PORT, check_tower_url
from watchtower.api.browsers import find_hosts, find_refusal
from watchtower.cli import make_parser
from watchtower.config import load_config

ROOT = Path(__file__).parents[2]
MANIFEST = (ROOT / "deploy/kubernetes/watchtower.yaml").read_text("utf-8")
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFEST))
POD: dict[str, Any] = yaml.safe_load(
    (ROOT / "deploy/kubernetes/doctor-init-container.yaml").read_text("utf-8")
)
PLUGIN: dict[str, Any] = json.loads(
    (ROOT / "deploy/kubernetes/node-problem-detector.json").read_text("utf-8")
)
VERSIONS = ("1.30", "1.33", "1.36")
AGENT = next(each for each in OBJECTS if each["kind"] == "DaemonSet")
TOWER = next(each for each in OBJECTS if each["kind"] == "StatefulSet")


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("item", [*OBJECTS, POD], ids=lambda item: item["kind"])
def test_every_object_has_only_what_its_schema_knows(item: dict[str, Any], version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install '.[cluster]'")
    validate.validate(item, version, strict=True)


@pytest.mark.parametrize("workload", [AGENT, TOWER], ids=["agent", "tower"])
def test_the_capabilities_are_those_of_the_unit_and_nothing_is_writable(workload) -> None:
    unit = settings(f"watchtower-{container_of(workload)['name']}")
    context = container_of(workload)["securityContext"]
    wanted = unit["CapabilityBoundingSet"].replace("CAP_", "").split()
    assert context["capabilities"]["drop"] == ["ALL"]
    assert context["capabilities"].get("add", []) == wanted
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert not context.get("privileged", False)


@pytest.mark.parametrize("workload", [AGENT, TOWER], ids=["agent", "tower"])
def test_the_limit_of_memory_is_that_of_the_unit(workload) -> None:
    unit = settings(f"watchtower-{container_of(workload)['name']}")
    assert container_of(workload)["resources"]["limits"]["memory"] == f"{unit['MemoryMax']}i"


def test_the_agent_sees_the_host_and_the_tower_is_no_root() -> None:
    assert AGENT["spec"]["template"]["spec"]["hostPID"]
    assert TOWER["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]
    assert "hostPID" not in TOWER["spec"]["template"]["spec"]


def read_config(text: str, tmp_path: Path):
    file = tmp_path / "tower.toml"
    file.write_text(text)
    return load_config(file, {})


def test_the_tower_takes_its_settings_and_answers_to_every_name_of_its_service(tmp_path: Path):
    (text,) = (each["data"]["tower.toml"] for each in OBJECTS if each["kind"] == "ConfigMap")
    config = read_config(text, tmp_path)
    (service,) = (each for each in OBJECTS if each["kind"] == "Service")
    name, space = service["metadata"]["name"], service["metadata"]["namespace"]
    hosts = find_hosts(config.host, config.public_url, config.allowed_hosts)
    names = [name, f"{name}.{space}", f"{name}.{space}.svc", f"{name}.{space}.svc.cluster.local"]
    for host in (*names, "10.1.2.3"):
        headers = [(b"host", f"{host}:{DEFAULT_PORT}".encode())]
        assert find_refusal("GET", headers, hosts) is None, host


def test_the_agent_s_options_exist_and_lead_to_the_service() -> None:
    container = container_of(AGENT)
    words = [re.sub(r"\$\((\w+)\)", "x", word) for word in container["command"]]
    url = next(each["value"] for each in container["env"] if each["name"] == "WATCHTOWER_URL")
    given = build_parser().parse_args([*words[1:], "--tower", url])
    (service,) = (each["metadata"] for each in OBJECTS if each["kind"] == "Service")
    wanted = f"http://{service['name']}.{service['namespace']}.svc:{DEFAULT_PORT}"
    assert given.tower == check_tower_url(wanted)
    assert given.insecure
    assert given.spool_dir in {each["mountPath"] for each in container["volumeMounts"]}


def test_policies_service_and_budget_select_pods_that_exist() -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in (AGENT, TOWER)]
    selectors = [
        each["spec"].get("podSelector", each["spec"].get("selector", {}))
        for each in OBJECTS
        if each["kind"] in ("NetworkPolicy", "PodDisruptionBudget", "Service")
    ]
    assert len(selectors) == 4
    for selector in selectors:
        assert selector.get("matchLabels", selector) in labels


def test_the_commands_of_the_init_container_and_of_the_plugin_exist() -> None:
    (container,) = POD["spec"]["initContainers"]
    given = build_parser().parse_args(container["command"][1:])
    assert (given.command, given.about) == ("doctor", "node")
    doctor, condition = PLUGIN["rules"]
    assert build_parser().parse_args(doctor["args"]).output == "line"
    assert make_parser().parse_args(condition["args"]).node
    known = {each["type"] for each in PLUGIN["conditions"]}
    assert {each["condition"] for each in PLUGIN["rules"]} == known
