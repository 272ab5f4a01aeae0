"""The Grafana-managed alerts: made from the rules of Prometheus, with the same names and limits."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dashboards.alert_rules import FILE, RULES, make_file, translate

SOURCE = RULES.read_text("utf-8")
RULES_OF_PROMETHEUS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for rule in yaml.safe_load(SOURCE)["groups"][0]["rules"]
}
(GROUP,) = yaml.safe_load(FILE.read_text("utf-8"))["groups"]
MADE: dict[str, dict[str, Any]] = {rule["title"]: rule for rule in GROUP["rules"]}


def test_the_file_is_what_make_docs_writes():
    assert FILE.read_text("utf-8") == make_file(SOURCE)


def test_there_is_a_rule_for_each_rule_of_prometheus():
    assert MADE.keys() == RULES_OF_PROMETHEUS.keys()
    uids = [rule["uid"] for rule in GROUP["rules"]]
    assert len(set(uids)) == len(uids)
    assert all(len(uid) <= 40 for uid in uids)  # longest that Grafana accepts


@pytest.mark.parametrize("name", MADE)
def test_a_rule_asks_what_that_of_prometheus_asks(name: str):
    made, rule = MADE[name], RULES_OF_PROMETHEUS[name]
    queries = {each["refId"]: each for each in made["data"]}
    assert queries["A"]["model"]["expr"] == rule["expr"].strip()
    assert made["condition"] == "C"
    assert made["for"] == rule.get("for", "0s")
    assert made["labels"] == rule["labels"]
    assert made["annotations"].keys() == rule["annotations"].keys()
    sources = {each["datasourceUid"] for each in made["data"]}
    assert sources == {"watchtower-prometheus", "__expr__"}


@pytest.mark.parametrize("name", MADE)
def test_a_missing_series_is_no_alert_except_for_the_dead_mans_switch(name: str):
    switch = name == "WatchtowerWatchdog"
    assert MADE[name]["noDataState"] == ("Alerting" if switch else "OK")
    assert MADE[name]["execErrState"] == "Error"


def test_the_text_of_an_incident_reads_labels_of_the_second_query():
    for name in ("WatchtowerJobHung", "WatchtowerJobNeverStarted", "WatchtowerJobDied"):
        notes = MADE[name]["annotations"]
        assert "E" in {each["refId"] for each in MADE[name]["data"]}
        for text in (notes["summary"], notes["url"]):
            assert "$values.E.Labels" in text
            assert "query" not in text
            assert ".Labels.rank" not in text


def test_a_value_is_that_of_the_query():
    assert (
        translate("{{ $value | humanizeDuration }}") == "{{ $values.B.Value | humanizeDuration }}"
    )


def test_text_with_a_dollar_is_in_annotations_and_queries_only():
    """Grafana replaces variables of the environment in all other fields."""
    for rule in GROUP["rules"]:
        plain = {key: rule[key] for key in rule if key not in ("annotations", "data")}
        assert "$" not in str(plain)
        assert "${" not in str(rule["annotations"])
