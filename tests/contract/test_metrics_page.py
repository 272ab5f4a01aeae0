"""docs/metrics.md is generated from the metrics that the code declares."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from agent.collectors.node import make_collectors
from agent.metric_table import AGENT_METRICS, NODE_PROBLEM, SOURCE_LAST_SUCCESS
from agent.metrics import Metrics
from tests.generated_docs import PARTS, ROOT, generate, make_table
from watchtower.api.metric_table import TOWER_METRICS
from watchtower.service.metric_spec import MetricKind, MetricSpec, Sample, counter

ALL = (*TOWER_METRICS, *AGENT_METRICS)


@pytest.mark.parametrize("page", PARTS)
def test_a_page_is_what_the_code_generates(page: str):
    text = (ROOT / page).read_text("utf-8")
    assert generate(page, text) == text, "run `make docs`"


def test_a_changed_metric_changes_the_page():
    changed = replace(TOWER_METRICS[0], help="Something else.")
    assert make_table([changed]) != make_table(TOWER_METRICS[:1])


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_names_labels_and_texts_follow_the_conventions(spec: MetricSpec):
    assert spec.name.startswith("watchtower_")
    assert (spec.kind is MetricKind.COUNTER) == spec.name.endswith("_total")
    assert not {"job", "instance", "pid", "le", "quantile"} & set(spec.labels)
    assert spec.help.endswith(".")
    assert spec.help[0].isupper() or spec.help[0].isdigit()
    assert "|" not in spec.help
    assert "\n" not in spec.help


def test_a_metric_is_declared_once():
    assert len({spec.name for spec in ALL}) == len(ALL)
    with pytest.raises(ValueError, match="must end with _total"):
        counter("watchtower_reports", "", "Reports.")


@pytest.mark.parametrize(
    "source",
    ["watchtower/api/metrics.py", "watchtower/api/job_metrics.py", "agent/metrics.py"],
)
def test_collectors_use_declared_metrics_only(source: str):
    assert '"watchtower_' not in (ROOT / source).read_text("utf-8")


def test_the_agent_has_the_metrics_that_it_declares():
    metrics = Metrics("n0")
    of_collectors = (spec for each in make_collectors("/") for spec in each.metrics)
    specs = [SOURCE_LAST_SUCCESS, NODE_PROBLEM, *of_collectors]
    metrics.show_samples(lambda: [Sample(spec, ("x",) * len(spec.labels), 1.0) for spec in specs])
    found = {family.name: family for family in own_families(metrics.registry)}
    declared = {spec.name.removesuffix("_total"): spec for spec in AGENT_METRICS}
    assert found.keys() == declared.keys()
    for name, spec in declared.items():
        assert found[name].type == spec.kind.value
        assert found[name].documentation == spec.help


def own_families(registry: CollectorRegistry):
    return [each for each in registry.collect() if each.name.startswith("watchtower_")]
