"""Writes the Grafana-managed alerts: `make docs`. Their source is the rule file of Prometheus.

A Grafana-managed rule has a query (A), its last value (B) and a condition (C). A query of ours has
a result only if the alert must fire, so the condition holds for every value of it. Annotations of
Grafana cannot run queries: what they need is in the labels of a second query (D, last value E).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
RULES = ROOT / "deploy/prometheus/watchtower.rules.yml"
FILE = ROOT / "dashboards/alerting/watchtower.yaml"

DATASOURCE = "watchtower-prometheus"
INTERVAL = "10s"
"""The shortest interval that Grafana accepts by default."""

DEAD_MANS_SWITCH = "WatchtowerWatchdog"

INFO = ("cause", "rank", "node", "suspects", "url")
"""Labels of the second query: what a later verdict may change."""

AWAY = "the tower does not answer at present"

INFO_QUERY = re.compile(
    r"\{\{ with query \(printf "
    r"\"watchtower_incident_info\{incident=%q\}\" \$labels\.incident\) -\}\}"
    r"\s*\{\{ with first \. (-?)\}\}"
)
"""The start of the text that reads these labels, in the rules of Prometheus."""


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as such, and repeats values instead of using anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_text)

HEADER = """\
# Alerts that Grafana itself evaluates, instead of Prometheus. `make docs` writes this file from
# deploy/prometheus/watchtower.rules.yml: change that one. Not opened in a Grafana yet.
"""


def make_file(rules: str) -> str:
    """Return the provisioning file for the text of the rule file."""
    (group,) = yaml.safe_load(rules)["groups"]
    alerts = [make_rule(rule) for rule in group["rules"] if "alert" in rule]
    made = {"orgId": 1, "name": group["name"], "folder": "watchtower", "interval": INTERVAL}
    file = {"apiVersion": 1, "groups": [{**made, "rules": alerts}]}
    text: str = yaml.dump(file, Dumper=_Dumper, sort_keys=False, width=10**6)
    return HEADER + text


def make_rule(rule: dict[str, Any]) -> dict[str, Any]:
    """Return a Grafana-managed rule for a rule of Prometheus."""
    name, expr = rule["alert"], rule["expr"].strip()
    notes = {key: translate(text) for key, text in rule["annotations"].items()}
    data = [query("A", expr), last_of("B", "A"), is_any("C", "B")]
    if any("$values.E" in text for text in notes.values()):
        data += [query("D", describe(expr)), last_of("E", "D")]
    return {
        "uid": re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower(),
        "title": name,
        "condition": "C",
        "data": data,
        "for": rule.get("for", "0s"),
        "noDataState": "Alerting" if name == DEAD_MANS_SWITCH else "OK",
        "execErrState": "Error",
        "labels": rule["labels"],
        "annotations": notes,
        "isPaused": False,
    }


def describe(expr: str) -> str:
    """Return a query with the labels of the current verdict.

    It has a result whenever `expr` has one: Grafana treats a rule with an empty query as one
    without data, and would end the alert.
    """
    names = ", ".join(INFO)
    return (
        f"(\n{expr}\n) * on (incident) group_left ({names})\n"
        "  topk by (incident) (1, watchtower_incident_info)\n"
        f'or on (incident) label_replace(\n{expr}\n, "cause", "{AWAY}", "", "")'
    )


def translate(text: str) -> str:
    """Return an annotation without queries for `watchtower_incident_info`. `query` itself exists in
    Grafana, but finds nothing: the sentences in other queries are left out."""
    parts = INFO_QUERY.split(text)
    if len(parts) > 1:
        text = r"{{ with $values.E.Labels -}}{{ with . -}}".join(parts[::2])
        text = re.sub(r"\.Labels\.(\w+)", r'(index . "\1")', text)
    return re.sub(r"\$value\b", "$values.B.Value", text)


def query(ref: str, expr: str) -> dict[str, Any]:
    """Return an instant query."""
    model = {"refId": ref, "expr": expr, "instant": True, "range": False, "editorMode": "code"}
    model |= {"intervalMs": 1000, "maxDataPoints": 43200}
    return _node(ref, DATASOURCE, model)


def last_of(ref: str, of: str) -> dict[str, Any]:
    """Return the last value of each series of a query."""
    return _expression(ref, {"type": "reduce", "expression": of, "reducer": "last"})


def is_any(ref: str, of: str) -> dict[str, Any]:
    """Return a condition that holds for every value of a query. None is negative."""
    evaluator = {"type": "gt", "params": [-1]}
    return _expression(
        ref, {"type": "threshold", "expression": of, "conditions": [{"evaluator": evaluator}]}
    )


def _expression(ref: str, model: dict[str, Any]) -> dict[str, Any]:
    source = {"type": "__expr__", "uid": "__expr__"}
    return _node(ref, "__expr__", {"refId": ref, "datasource": source, **model})


def _node(ref: str, datasource: str, model: dict[str, Any]) -> dict[str, Any]:
    time_range = {"from": 600, "to": 0}
    return {
        "refId": ref,
        "relativeTimeRange": time_range,
        "datasourceUid": datasource,
        "model": model,
    }


def main() -> None:
    """Write the file."""
    FILE.write_text(make_file(RULES.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
