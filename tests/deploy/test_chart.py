"""The Helm chart: what it renders is valid and agrees with the settings.

Without Helm (`make test-packages` installs it), only its files are compared.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from agent.cli import build_parser
from dashboards.__main__ import FOLDER as DASHBOARDS
from dashboards.alert_rules import RULES
from tests.deploy.test_kubernetes import MANIFEST, VERSIONS, container_of, read_config
from tests.deploy.test_units import settings
from watchtower.access.tokens import Scope, TokenBook

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/watchtower"
FILES = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").iterdir())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))
RULE_FILES = {
    "watchtower": RULES,
    "watchtower-advisories": RULES.with_name("watchtower-advisories.rules.yml"),
}
"""By the name of their PrometheusRule."""

CUSTOM = ("cert-manager.io/", "monitoring.coreos.com/", "security.openshift.io/")


def values_of(name: str) -> dict[str, Any]:
    return yaml.safe_load((CHART / f"ci/{name}-values.yaml").read_text("utf-8"))


@functools.cache
def render(name: str, release: str = "watchtower", namespace: str = "watchtower") -> str:
    pytest.importorskip("helm_python", reason="pip install '.[cluster]', from Python 3.11 on")
    from deploy.kubernetes.render import render

    return render(values_of(name), release, namespace)


def objects_of(name: str, *where: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Each object by its kind and name."""
    objects = list(yaml.safe_load_all(render(name, *where)))
    found = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    assert len(found) == len(objects)
    return found


def test_the_manifest_is_what_the_chart_renders_by_default() -> None:
    rendered = render("defaults")
    from deploy.kubernetes.render import HEAD

    assert HEAD + rendered == MANIFEST, "run `make chart`"


@pytest.mark.parametrize("name", FILES)
def test_helm_finds_nothing_wrong_with_the_chart(name: str) -> None:
    helm = pytest.importorskip("helm_python", reason="pip install '.[cluster]'")
    found = helm.lint(CHART, values_of(name), strict=True, namespace="ml-ops")
    assert found["errors"] == []
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_every_object_has_only_what_its_schema_knows(name: str, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install '.[cluster]'")
    for item in objects_of(name).values():
        if not item["apiVersion"].startswith(CUSTOM):
            validate.validate(item, version, strict=True)


@pytest.mark.parametrize("name", FILES)
def test_the_values_follow_the_schema_also_without_helm(name: str) -> None:
    jsonschema.validate(VALUES, SCHEMA)
    jsonschema.validate(values_of(name), SCHEMA)


@pytest.mark.parametrize(
    "wrong",
    [
        {"agents": {}},
        {"image": {"registry": "registry.example"}},
        {"tokens": {"secret": "", "generate": True}},
        {"tls": {"secret": "x", "certManager": True, "issuer": {"name": ""}}},
        {"agent": {"options": "--output-lines=20"}},
        {"monitoring": {"grafana": "grafana.example"}},
        {"tower": {"resources": {"limit": {}}}},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)
    helm = pytest.importorskip("helm_python", reason="pip install '.[cluster]'")
    from deploy.kubernetes.render import render

    with pytest.raises(helm.HelmError):
        render(wrong)


def test_every_value_is_in_the_schema_and_used() -> None:
    def walk(values: dict[str, Any], schema: dict[str, Any], path: str) -> list[str]:
        known = schema["properties"].keys() - {"global"}
        assert known == values.keys(), path
        return [
            leaf
            for key, value in values.items()
            for leaf in (
                walk(value, schema["properties"][key], f"{path}.{key}")
                if "properties" in schema["properties"][key]
                else [f"{path}.{key}"]
            )
        ]

    texts = "".join(path.read_text("utf-8") for path in (CHART / "templates").iterdir())
    for leaf in walk(VALUES, SCHEMA, ""):
        assert re.search(rf"\.{leaf.rpartition('.')[2]}\b", texts), leaf


def test_rules_and_dashboards_are_the_generated_files(tmp_path: Path) -> None:
    """As links in the folder, as files in the archive."""
    own = {f"files/dashboards/{path.name}": path for path in DASHBOARDS.glob("*.json")}
    own |= {f"files/{path.name}": path for path in RULE_FILES.values()}
    for name, source in own.items():
        assert (CHART / name).samefile(source)
    helm = pytest.importorskip("helm_python", reason="pip install '.[cluster]'")
    with tarfile.open(helm.package(CHART, destination=tmp_path)) as archive:
        for name, source in own.items():
            member = archive.extractfile(f"watchtower/{name}")
            assert member
            assert member.read() == source.read_bytes()


def test_a_release_fits_into_the_secret_in_which_helm_keeps_it(tmp_path: Path) -> None:
    helm = pytest.importorskip("helm_python", reason="pip install '.[cluster]'")
    assert Path(helm.package(CHART, destination=tmp_path)).stat().st_size < 500_000


def test_versions_of_the_chart_are_that_of_the_distribution() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    for key in ("version", "appVersion"):
        assert f'\nversion = "{chart[key]}"\n' in project


def test_rules_have_the_addresses_given_and_dashboards_the_label_of_the_sidecar() -> None:
    objects = objects_of("everything")
    for name, source in RULE_FILES.items():
        wanted = source.read_text("utf-8")
        for old, new in (
            ("https://runbooks.example", "https://wiki.example/watchtower"),
            ("https://grafana.example", "https://grafana.of.us"),
        ):
            wanted = wanted.replace(old, new)
        assert objects["PrometheusRule", name]["spec"] == yaml.safe_load(wanted)
    for source in DASHBOARDS.glob("*.json"):
        board = objects["ConfigMap", f"watchtower-dashboard-{source.stem}"]
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(board["data"][f"watchtower-{source.name}"]) == json.loads(
            source.read_text("utf-8")
        )


def test_monitors_find_tower_and_agents_and_name_their_jobs_as_the_rules_do() -> None:
    objects = objects_of("everything")
    tower = objects["ServiceMonitor", "watchtower"]
    service = objects["Service", "watchtower"]
    assert tower["metadata"]["labels"]["release"] == "prometheus"
    assert tower["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    (endpoint,) = tower["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    agents = objects["PodMonitor", "watchtower-agent"]
    pods = objects["DaemonSet", "watchtower-agent"]["spec"]["template"]
    assert agents["spec"]["selector"]["matchLabels"] == pods["metadata"]["labels"]
    (metrics,) = agents["spec"]["podMetricsEndpoints"]
    assert metrics["port"] in [
        port["name"] for port in container_of({"spec": {"template": pods}})["ports"]
    ]
    jobs = {each["relabelings"][0]["replacement"] for each in (endpoint, metrics)}
    assert set(re.findall(r'\bup\{job=\\?"([\w-]+)\\?"', RULES.read_text("utf-8"))) == jobs


def test_the_certificate_has_the_name_that_agents_and_prometheus_use() -> None:
    objects = objects_of("everything", "wt", "ml-ops")
    certificate = objects["Certificate", "wt"]["spec"]
    agent = container_of(objects["DaemonSet", "wt-agent"])
    url = next(each["value"] for each in agent["env"] if each["name"] == "WATCHTOWER_URL")
    assert url == "https://wt.ml-ops.svc:19660"
    assert "wt.ml-ops.svc" in certificate["dnsNames"]
    assert "--insecure" not in agent["command"]
    given = build_parser().parse_args(
        [re.sub(r"\$\((\w+)\)", "x", w) for w in agent["command"][1:]]
    )
    assert given.ca_file == "/run/watchtower/tls/ca.crt"
    assert (given.output_lines, given.match) == (20, (("TEAM", "a b"),))
    volumes = objects["DaemonSet", "wt-agent"]["spec"]["template"]["spec"]["volumes"]
    (tls,) = (each["secret"] for each in volumes if each["name"] == "tls")
    assert tls == {
        "secretName": certificate["secretName"],
        "items": [{"key": "ca.crt", "path": "ca.crt"}],
    }
    monitor = objects["ServiceMonitor", "wt"]["spec"]["endpoints"][0]
    assert monitor["tlsConfig"]["serverName"] in certificate["dnsNames"]


@pytest.mark.parametrize("name", FILES)
def test_the_tower_takes_its_settings(name: str, tmp_path: Path) -> None:
    (text,) = (
        each["data"]["tower.toml"]
        for each in objects_of(name, "wt", "ml-ops").values()
        if "tower.toml" in each.get("data", {})
    )
    config = read_config(text, tmp_path)
    assert "wt.ml-ops.svc" in config.allowed_hosts
    assert config.insecure == (name == "without-tokens")
    assert bool(config.tls_cert) == (name == "everything")


def test_every_file_in_the_settings_is_below_a_mount() -> None:
    objects = objects_of("everything")
    text = objects["ConfigMap", "watchtower"]["data"]["tower.toml"]
    mounts = container_of(objects["StatefulSet", "watchtower"])["volumeMounts"]
    named = re.findall(r'"(/(?:run|var|etc)/[^"]+)"', text)
    assert len(named) == 7
    for file in named:
        assert any(f"{file}/".startswith(f"{each['mountPath']}/") for each in mounts), file


def test_the_tower_accepts_generated_tokens_and_they_are_kept(tmp_path: Path) -> None:
    secret = objects_of("everything")["Secret", "watchtower-tokens"]
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    files = {scope: tmp_path / scope.value for scope in Scope}
    for scope, file in files.items():
        file.touch(0o400)
        file.write_bytes(base64.b64decode(secret["data"][scope.value]))
    book = TokenBook({scope: str(file) for scope, file in files.items()}, {})
    found = [book.scope_of(file.read_bytes()) for file in files.values()]
    assert found == list(files)


def test_openshift_allows_what_the_agent_has_and_no_more() -> None:
    objects = objects_of("everything", "wt", "ml-ops")
    allowed = objects["SecurityContextConstraints", "ml-ops-wt-agent"]
    unit = settings("watchtower-agent")["CapabilityBoundingSet"].replace("CAP_", "").split()
    assert allowed["allowedCapabilities"] == unit
    pod = objects["DaemonSet", "wt-agent"]["spec"]["template"]["spec"]
    assert allowed["users"] == [f"system:serviceaccount:ml-ops:{pod['serviceAccountName']}"]
    kinds = {key for volume in pod["volumes"] for key in volume if key != "name"}
    assert kinds == set(allowed["volumes"])
    (subject,) = objects["RoleBinding", "wt"]["subjects"]
    tower = objects["StatefulSet", "wt"]["spec"]["template"]["spec"]
    assert subject["name"] == tower["serviceAccountName"]
