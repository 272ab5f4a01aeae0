"""A dashboard: its variables, its links to the others, and its panels in rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.panels import DATASOURCE, Panel

WIDTH = 24
"""Columns of Grafana's grid."""

DATASOURCE_UID = "watchtower-prometheus"
"""The data source that `provisioning/datasources` adds. Any other one can be chosen."""

SCHEMA_VERSION = 39


@dataclass(frozen=True, slots=True)
class Row:
    """Panels beside each other, with their common height in rows of Grafana's grid."""

    height: int
    panels: Sequence[tuple[int, Panel]]


def row(height: int, *panels: tuple[int, Panel]) -> Row:
    """Return a row. Each panel has its width in columns; the sum is `WIDTH`."""
    return Row(height, panels)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable whose values are the values of a label."""

    name: str
    title: str
    query: str
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks on all time series while an expression has a value."""

    name: str
    expr: str
    title: str
    text: str
    color: str


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard."""

    name: str
    """Its uid is `watchtower-NAME`."""
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[Variable] = ()
    annotations: Sequence[Annotation] = ()
    time_from: str = "now-6h"

    @property
    def uid(self) -> str:
        """Return the part of its address that never changes."""
        return f"watchtower-{self.name}"

    def to_json(self) -> dict[str, Any]:
        """Return Grafana's JSON model of the dashboard."""
        return {
            "annotations": {"list": [_annotate(each) for each in self.annotations]},
            "description": self.description,
            "editable": False,
            "fiscalYearStartMonth": 0,
            "graphTooltip": 1,
            "id": None,
            "links": [LINKS],
            "liveNow": False,
            "panels": _place(self.rows),
            "refresh": "10s",
            "schemaVersion": SCHEMA_VERSION,
            "tags": ["watchtower"],
            "templating": {"list": [CHOOSE_DATASOURCE, *map(_choose, self.variables)]},
            "time": {"from": self.time_from, "to": "now"},
            "timepicker": {},
            "timezone": "browser",
            "title": self.title,
            "uid": self.uid,
            "version": 1,
            "weekStart": "",
        }


LINKS = {
    "asDropdown": False,
    "icon": "dashboard",
    "includeVars": True,
    "keepTime": True,
    "tags": ["watchtower"],
    "targetBlank": False,
    "title": "watchtower",
    "tooltip": "",
    "type": "dashboards",
    "url": "",
}
"""Links to all dashboards with the tag. They keep the time range and the variables."""

CHOOSE_DATASOURCE = {
    "current": {"selected": False, "text": DATASOURCE_UID, "value": DATASOURCE_UID},
    "hide": 0,
    "includeAll": False,
    "label": "Data source",
    "multi": False,
    "name": "datasource",
    "options": [],
    "query": "prometheus",
    "refresh": 1,
    "regex": "",
    "skipUrlSync": False,
    "type": "datasource",
}


def _choose(variable: Variable) -> dict[str, Any]:
    return {
        "datasource": DATASOURCE,
        "hide": 2 if variable.hidden else 0,
        "includeAll": False,
        "label": variable.title,
        "multi": False,
        "name": variable.name,
        "options": [],
        "query": {
            "qryType": 1,
            "query": variable.query,
            "refId": "PrometheusVariableQueryEditor-VariableQuery",
        },
        "refresh": 2,
        "regex": "",
        "skipUrlSync": False,
        "sort": 1,
        "type": "query",
    }


def _annotate(annotation: Annotation) -> dict[str, Any]:
    return {
        "datasource": DATASOURCE,
        "enable": True,
        "expr": annotation.expr,
        "hide": False,
        "iconColor": annotation.color,
        "name": annotation.name,
        "step": "15s",
        "tagKeys": "",
        "textFormat": annotation.text,
        "titleFormat": annotation.title,
    }


def _place(rows: Sequence[Row]) -> list[Panel]:
    """Return the panels with their numbers and places. Raises ValueError if a row is too wide."""
    placed: list[Panel] = []
    y = 0
    for row in rows:
        x = 0
        for width, panel in row.panels:
            place = {"h": row.height, "w": width, "x": x, "y": y}
            placed.append({"id": len(placed) + 1, "gridPos": place} | panel)
            x += width
        if x != WIDTH:
            raise ValueError(f"invalid row with {row.panels[0][1]['title']!r}: {x} columns of 24")
        y += row.height
    return placed
