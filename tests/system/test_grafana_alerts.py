"""The Grafana-managed alerts under `promtool`: the second query, and the syntax of the texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from dashboards.alert_rules import FILE
from tests.system.monitoring import needs_prometheus
from tests.system.promtool import SCRAPED, check, promtool

pytestmark = needs_prometheus

(GROUP,) = yaml.safe_load(FILE.read_text("utf-8"))["groups"]
MADE: dict[str, dict[str, Any]] = {rule["title"]: rule for rule in GROUP["rules"]}
A = 'incident="01A",training_job="llama-a"'


def second_query(name: str) -> str:
    (query,) = [each for each in MADE[name]["data"] if each["refId"] == "D"]
    return query["model"]["expr"]


def test_the_second_query_has_the_verdict_of_each_alert_also_while_the_tower_is_away(
    tmp_path: Path,
):
    info = f"watchtower_incident_info{{{A},{SCRAPED},"
    series = {
        f'watchtower_incident_open{{{A},kind="hung",{SCRAPED}}}': "1x60",
        info + 'cause="straggler",rank="3",node="n1",suspects="2"}': "1x11 stale",
        info + 'cause="exited_early",rank="5",node="n0",suspects="1"}': "_x11 1x11 stale",
    }
    identity = f'{A},kind="hung"'
    texts = {
        "30s": 'cause="straggler",node="n1",rank="3",suspects="2"',
        "90s": 'cause="exited_early",node="n0",rank="5",suspects="1"',
        "150s": 'cause="the tower does not answer at present"',
    }
    checks = [
        {
            "expr": second_query("WatchtowerJobHung"),
            "eval_time": moment,
            "exp_samples": [{"labels": f"{{{identity},{labels}}}", "value": 1}],
        }
        for moment, labels in texts.items()
    ]
    check(tmp_path, series, promql_expr_test=checks)


def test_every_query_and_every_text_can_be_parsed(tmp_path: Path):
    variables = "{{ $values := . }}"
    rules = [
        {
            "alert": f"{name}{each['refId']}",
            "expr": each["model"]["expr"],
            "annotations": {key: f"{variables}{text}" for key, text in rule["annotations"].items()},
        }
        for name, rule in MADE.items()
        for each in rule["data"]
        if "expr" in each["model"]
    ]
    (tmp_path / "made.yml").write_text(
        json.dumps({"groups": [{"name": "grafana", "rules": rules}]})
    )
    assert "SUCCESS" in promtool(tmp_path, "check", "rules", "made.yml")
