"""Panels of a dashboard, one function for each kind, as Grafana's JSON model has them.

A function returns a panel without its place: `dashboards/board.py` sets `id` and `gridPos`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

GREEN, YELLOW, ORANGE, RED, BLUE = "green", "yellow", "orange", "red", "blue"

STATES = {
    -1: ("not judged yet", "text"),
    0: ("healthy", GREEN),
    1: ("recovered", "light-green"),
    2: ("suspended", BLUE),
    3: ("slow", YELLOW),
    4: ("monitoring_lost", "purple"),
    5: ("suspect", ORANGE),
    6: ("hung", RED),
}
"""Text and color for each value of `watchtower_job_state`."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel."""

    expr: str
    legend: str = ""
    instant: bool = False
    """Whether only the end of the time range is asked for. Tables and bars always are instant."""
    form: str = "time_series"
    """How Grafana arranges the answer: "time_series" or "table"."""


@dataclass(frozen=True, slots=True)
class Text:
    """The parts of a panel besides its values."""

    title: str
    description: str
    """One sentence."""
    unit: str
    no_data: str
    """The text shown instead of values, if there are none."""


Thresholds = Mapping[float, str]
"""Colors from these values on. The color below the first one is green."""

Panel = dict[str, Any]

NO_LABEL = "-"
"""The text of a cell whose series has no such label. Without it, the cell would show the text that
the panel has for no data."""

HIDE_FROM = {"legend": False, "tooltip": False, "viz": False}
REDUCE = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def stat(
    text: Text,
    *queries: Query,
    thresholds: Thresholds | None = None,
    values: Mapping[int, tuple[str, str]] | None = None,
    sparkline: bool = False,
) -> Panel:
    """Return a panel with one large number per query. `values` are texts for numbers."""
    panel = _panel("stat", text, queries, thresholds or {})
    panel["fieldConfig"]["defaults"]["mappings"] = _mappings(values or {})
    panel["options"] = {
        "colorMode": "value",
        "graphMode": "area" if sparkline else "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": REDUCE,
        "showPercentChange": False,
        "textMode": "auto",
        "wideLayout": True,
    }
    return panel


def bars(
    text: Text, query: Query, *, thresholds: Thresholds | None = None, highest: float | None = None
) -> Panel:
    """Return a panel with a bar for each series. `highest` is the value of a full bar."""
    panel = _panel("bargauge", text, [_at_end(query)], thresholds or {})
    panel["fieldConfig"]["defaults"] |= {"min": 0} | ({"max": highest} if highest else {})
    panel["options"] = {
        "displayMode": "basic",
        "legend": _legend(shown=False),
        "maxVizHeight": 300,
        "minVizHeight": 16,
        "minVizWidth": 8,
        "namePlacement": "auto",
        "orientation": "horizontal",
        "reduceOptions": REDUCE,
        "showUnfilled": True,
        "sizing": "auto",
        "valueMode": "color",
    }
    return panel


def bar_chart(text: Text, query: Query, label: str) -> Panel:
    """Return a panel with a bar for each value of a label."""
    panel = _panel("barchart", text, [_at_end(query, "table")], {})
    panel["fieldConfig"]["defaults"]["custom"] = {
        "axisLabel": "",
        "axisPlacement": "auto",
        "fillOpacity": 80,
        "gradientMode": "none",
        "hideFrom": HIDE_FROM,
        "lineWidth": 1,
        "scaleDistribution": {"type": "linear"},
    }
    panel["fieldConfig"]["defaults"]["min"] = 0
    panel["options"] = {
        "barRadius": 0,
        "barWidth": 0.8,
        "fullHighlight": False,
        "groupWidth": 0.7,
        "legend": _legend(shown=False),
        "orientation": "horizontal",
        "showValue": "auto",
        "stacking": "none",
        "tooltip": {"mode": "single", "sort": "none"},
        "xField": label,
        "xTickLabelMaxLength": 30,
        "xTickLabelRotation": 0,
    }
    panel["transformations"] = [_organize(["Time"], [])]
    return panel


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: a label of the query, or its `Value`."""

    field: str
    title: str
    link: str = ""
    """The address that a click opens; `dashboard_link` makes those of dashboards."""
    unit: str = ""


def table(text: Text, query: Query, *columns: Column) -> Panel:
    """Return a table with a row for each series. Every label of the series needs a column."""
    panel = _panel("table", text, [_at_end(query, "table")], {})
    panel["fieldConfig"]["defaults"]["custom"] = {
        "align": "auto",
        "cellOptions": {"type": "auto"},
        "inspect": False,
    }
    panel["fieldConfig"]["overrides"] = [
        {
            "matcher": {"id": "byName", "options": column.field},
            "properties": list(_properties(column)),
        }
        for column in columns
    ]
    panel["options"] = {
        "cellHeight": "sm",
        "footer": {"countRows": False, "fields": [], "reducer": ["sum"], "show": False},
        "frameIndex": 0,
        "showHeader": True,
        "sortBy": [],
    }
    fields = [column.field for column in columns]
    unused = ["Time", *(() if "Value" in fields else ("Value",))]
    panel["transformations"] = [_organize(unused, fields)]
    return panel


def _properties(column: Column) -> list[dict[str, Any]]:
    link = {"targetBlank": False, "title": f"Open {column.title}", "url": column.link}
    found = {
        "displayName": column.title,
        "unit": column.unit,
        "links": [link] if column.link else [],
        "noValue": NO_LABEL,
    }
    return [{"id": key, "value": value} for key, value in found.items() if value]


def series(
    text: Text,
    *queries: Query,
    thresholds: Thresholds | None = None,
    stacked: bool = False,
    stepped: bool = False,
) -> Panel:
    """Return a panel with a line for each series. Thresholds are dashed lines."""
    panel = _panel("timeseries", text, queries, thresholds or {})
    defaults = panel["fieldConfig"]["defaults"]
    defaults["color"] = {"mode": "palette-classic"}
    defaults["min"] = 0
    defaults["custom"] = {
        "axisLabel": "",
        "axisPlacement": "auto",
        "drawStyle": "line",
        "fillOpacity": 40 if stacked else 0,
        "gradientMode": "none",
        "hideFrom": HIDE_FROM,
        "lineInterpolation": "stepAfter" if stepped else "linear",
        "lineWidth": 1,
        "pointSize": 4,
        "scaleDistribution": {"type": "linear"},
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
        "thresholdsStyle": {"mode": "dashed" if thresholds else "off"},
    }
    panel["options"] = {
        "legend": _legend(shown=True),
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel


def timeline(
    text: Text, *queries: Query, values: Mapping[int, tuple[str, str]] | None = None
) -> Panel:
    """Return a panel with a row for each series, colored by its value. `values` are texts."""
    panel = _panel("state-timeline", text, queries, {})
    panel["fieldConfig"]["defaults"]["mappings"] = _mappings(values or {})
    panel["fieldConfig"]["defaults"]["custom"] = {
        "fillOpacity": 80,
        "hideFrom": HIDE_FROM,
        "lineWidth": 0,
    }
    panel["options"] = {
        "alignValue": "left",
        "legend": _legend(shown=True),
        "mergeValues": True,
        "rowHeight": 0.9,
        "showValue": "never",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return panel


def dashboard_link(name: str, **variables: str) -> str:
    """Return the address of a dashboard with variables, for the same time range and data source.

    The values of the variables are names of columns of the clicked row.
    """
    given = "".join(
        f"&var-{variable}=${{__data.fields.{column}}}" for variable, column in variables.items()
    )
    return f"/d/watchtower-{name}?${{datasource:queryparam}}{given}&${{__url_time_range}}"


def _panel(kind: str, text: Text, queries: Sequence[Query], thresholds: Thresholds) -> Panel:
    return {
        "type": kind,
        "title": text.title,
        "description": text.description,
        "datasource": DATASOURCE,
        "fieldConfig": {
            "defaults": {
                "color": {"mode": "thresholds"},
                "mappings": [],
                "noValue": text.no_data,
                "thresholds": {
                    "mode": "absolute",
                    "steps": [
                        {"color": GREEN, "value": None},
                        *({"color": color, "value": at} for at, color in thresholds.items()),
                    ],
                },
                "unit": text.unit,
            },
            "overrides": [],
        },
        "targets": [_target(query, chr(ord("A") + at)) for at, query in enumerate(queries)],
    }


def _target(query: Query, name: str) -> dict[str, Any]:
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr.strip(),
        "format": query.form,
        "instant": query.instant,
        "legendFormat": query.legend or "__auto",
        "range": not query.instant,
        "refId": name,
    }


def _at_end(query: Query, form: str = "time_series") -> Query:
    return replace(query, instant=True, form=form)


def _legend(*, shown: bool) -> dict[str, Any]:
    return {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": shown}


def _mappings(values: Mapping[int, tuple[str, str]]) -> list[dict[str, Any]]:
    if not values:
        return []
    options = {
        str(value): {"color": color, "index": index, "text": text}
        for index, (value, (text, color)) in enumerate(values.items())
    }
    return [{"options": options, "type": "value"}]


def _organize(hidden: Sequence[str], order: Sequence[str]) -> dict[str, Any]:
    return {
        "id": "organize",
        "options": {
            "excludeByName": dict.fromkeys(hidden, True),
            "includeByName": {},
            "indexByName": {name: index for index, name in enumerate(order)},
            "renameByName": {},
        },
    }
