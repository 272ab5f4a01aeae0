"""The JSON files of the dashboards: rules of Grafana's dashboard-linter, and names that exist."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from agent.metric_table import AGENT_METRICS
from dashboards.__main__ import BOARDS, FOLDER, render
from dashboards.board import WIDTH, Board
from dashboards.panels import STATES
from tests.dashboard_queries import BUILT_IN, VARIABLE, all_queries, load, names
from watchtower.api import job_metrics
from watchtower.api.metric_table import TOWER_METRICS
from watchtower.service.metric_spec import MetricKind, MetricSpec
from watchtower.wire.verdict import NOT_JUDGED

PROCESS = (
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
)
PROCESS_METRICS = (*PROCESS, "process_open_fds", "process_max_fds")
"""Metrics that prometheus_client adds."""

OF_SCRAPES = {"instance", "job"}
"""Labels that Prometheus adds."""


def labels_by_name() -> dict[str, set[str]]:
    """The labels of every series of tower and agent."""
    found = {name: {"node", *OF_SCRAPES} for name in PROCESS_METRICS}
    for specs, more in ((TOWER_METRICS, set[str]()), (AGENT_METRICS, {"node"})):
        for spec in specs:
            for name, extra in series_of(spec):
                found[name] = {*spec.labels, *extra, *more, *OF_SCRAPES}
    return found


def series_of(spec: MetricSpec) -> list[tuple[str, set[str]]]:
    if spec.kind is not MetricKind.HISTOGRAM:
        return [(spec.name, set())]
    return [(f"{spec.name}_bucket", {"le"}), (f"{spec.name}_sum", set())]


KNOWN = labels_by_name()
NAME = re.compile(r"\b(?:watchtower|process)_\w+")
MATCHED = re.compile(r"\b((?:watchtower|process)_\w+)\{([^}]*)\}")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPED = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")
SHOWN = re.compile(r"\{\{(\w+)\}\}")


def check_names(expr: str, shown: set[str]) -> list[str]:
    """The wrong names in an expression. `shown` are labels that a panel shows."""
    used = set(NAME.findall(expr))
    wrong = [f"unknown metric {name}" for name in used - KNOWN.keys()]
    for name, matchers in MATCHED.findall(expr):
        labels = set(MATCHER.findall(matchers))
        wrong += [f"{name} has no label {label}" for label in labels - KNOWN.get(name, set())]
    grouped = {word for group in GROUPED.findall(expr) for word in re.findall(r"\w+", group)}
    have = {label for name in used for label in KNOWN.get(name, ())}
    wrong += [f"no metric has the label {label}" for label in (grouped | shown) - have]
    return wrong


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_file_is_what_the_code_generates(board: Board):
    text = (FOLDER / f"{board.name}.json").read_text("utf-8")
    assert render(board) == text, "run `make dashboards`"


def test_the_states_of_a_job_have_their_names():
    names_in_code = [status.value for status in job_metrics.STATES]
    names = {value: text for value, (text, _) in STATES.items()}
    assert names.pop(job_metrics.NOT_JUDGED_STATE) == NOT_JUDGED.replace("_", " ") + " yet"
    assert names == dict(enumerate(names_in_code))


def test_every_file_has_its_source():
    assert names() == sorted(board.name for board in BOARDS)


@pytest.fixture(params=names())
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    return load(request.param)


def test_a_dashboard_keeps_its_address_and_cannot_be_edited(dashboard: dict[str, Any]):
    assert re.fullmatch(r"watchtower-[a-z]{1,20}", dashboard["uid"])
    assert 36 <= dashboard["schemaVersion"] <= 39
    assert dashboard["editable"] is False
    assert dashboard["id"] is None
    assert dashboard["tags"] == ["watchtower"]
    assert dashboard["timezone"] == "browser"


def test_links_keep_the_time_range_and_the_variables(dashboard: dict[str, Any]):
    assert all(link["keepTime"] and link["includeVars"] for link in dashboard["links"])
    for panel in dashboard["panels"]:
        for link in links_of(panel):
            if link.startswith("/d/"):
                assert link.endswith("&${__url_time_range}"), link
                assert "${datasource:queryparam}" in link
                uid, _, variables = link.removeprefix("/d/").partition("?")
                assert uid in {board.uid for board in BOARDS}
                (target,) = [board for board in BOARDS if board.uid == uid]
                given = set(re.findall(r"&var-(\w+)=", variables))
                assert given <= {variable.name for variable in target.variables}, link
            for field in re.findall(r"\$\{__data\.fields\.(\w+)\}", link):
                assert field in fields_of(panel), link


def links_of(panel: dict[str, Any]) -> list[str]:
    return [
        link["url"]
        for override in panel["fieldConfig"]["overrides"]
        for each in override["properties"]
        if each["id"] == "links"
        for link in each["value"]
    ]


def fields_of(panel: dict[str, Any]) -> set[str]:
    return {each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]}


def test_a_cell_without_its_label_does_not_show_that_the_panel_has_no_data(dashboard):
    for panel in dashboard["panels"]:
        if panel["type"] == "table":
            for override in panel["fieldConfig"]["overrides"]:
                assert {"id": "noValue", "value": "-"} in override["properties"]


def test_variables_are_read_again_when_the_time_range_changes(dashboard: dict[str, Any]):
    first, *others = dashboard["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    for variable in others:
        assert variable["refresh"] == 2
        assert variable["datasource"]["uid"] == "${datasource}"
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
        assert found
        assert check_names(found[1], {found[2]}) == []


def test_every_panel_explains_itself(dashboard: dict[str, Any]):
    titles = [panel["title"] for panel in dashboard["panels"]]
    assert len(set(titles)) == len(titles)
    for panel in dashboard["panels"]:
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"]
        assert re.fullmatch(r"[A-Z0-9][^.]*\.", panel["description"]), panel["title"]
        assert defaults["unit"]
        assert defaults["noValue"]
        first, *steps = defaults["thresholds"]["steps"]
        assert first["value"] is None
        assert [step["value"] for step in steps] == sorted(step["value"] for step in steps)
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"]


def test_no_panel_covers_another_one(dashboard: dict[str, Any]):
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(one["x"] >= 0 and one["x"] + one["w"] <= WIDTH for one in places)
    for one, other in itertools.combinations(places, 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        ), (one, other)


@pytest.mark.parametrize("query", all_queries(), ids=lambda query: query.place)
def test_a_query_uses_names_that_exist(query):
    panels = {panel["title"]: panel for panel in load(query.dashboard)["panels"]}
    panel = panels[query.panel]
    shown = set(SHOWN.findall(query.legend)) | fields_of(panel) - {"Value"}
    shown |= {panel["options"]["xField"]} if panel["type"] == "barchart" else set()
    assert check_names(query.expr, shown) == []
    variables = {each["name"] for each in load(query.dashboard)["templating"]["list"]}
    assert set(VARIABLE.findall(query.expr)) <= variables | BUILT_IN
    assert all(
        word in ("[$__range", "[$__rate_interval") for word in re.findall(r"\[\$?\w+", query.expr)
    )


@pytest.mark.parametrize("dashboard_name", names())
def test_annotations_use_names_that_exist(dashboard_name: str):
    for each in load(dashboard_name)["annotations"]["list"]:
        shown = set(SHOWN.findall(each["titleFormat"] + each["textFormat"]))
        assert check_names(each["expr"], shown) == []


def test_a_wrong_name_is_found():
    assert check_names("max(watchtower_job_stepp)", set()) == [
        "unknown metric watchtower_job_stepp"
    ]
    assert check_names('watchtower_job_step{rank="1"}', set()) == [
        "watchtower_job_step has no label rank"
    ]
    assert check_names("max by (nodes) (watchtower_job_step)", {"training_job"}) == [
        "no metric has the label nodes"
    ]


def test_the_provisioned_data_source_is_the_default_of_the_dashboards(dashboard: dict[str, Any]):
    text = (FOLDER.parents[1] / "datasources/watchtower.yaml").read_text("utf-8")
    current = dashboard["templating"]["list"][0]["current"]["value"]
    assert f"uid: {current}\n" in text
    provider = (FOLDER.parent / "watchtower.yaml").read_text("utf-8")
    assert f"path: /etc/grafana/provisioning/dashboards/{FOLDER.name}\n" in provider


def test_the_folder_that_is_mounted_for_the_dashboards_adds_no_alerts():
    provisioned = {each.name for each in FOLDER.parents[1].iterdir()}
    assert provisioned == {"dashboards", "datasources"}
