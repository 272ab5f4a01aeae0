"""The queries in the JSON files of the dashboards, as a Grafana would send them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "dashboards/provisioning/dashboards/watchtower"

BUILT_IN = {"__range", "__rate_interval"}
"""Variables that Grafana sets."""

VARIABLE = re.compile(r"\$(\w+)")


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query of one panel."""

    dashboard: str
    panel: str
    name: str
    """Its letter in the panel."""
    expr: str
    legend: str
    instant: bool

    @property
    def place(self) -> str:
        return f"{self.dashboard} / {self.panel} / {self.name}"

    def fill(self, values: Mapping[str, str]) -> str:
        """The expression with values instead of variables."""
        return VARIABLE.sub(lambda found: values[found[1]], self.expr)


def load(name: str) -> dict[str, Any]:
    """One dashboard."""
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def names() -> list[str]:
    """The names of all dashboards."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def panel_queries(name: str) -> Iterator[PanelQuery]:
    """The queries of the panels of a dashboard."""
    for panel in load(name)["panels"]:
        for target in panel["targets"]:
            yield PanelQuery(
                name,
                panel["title"],
                target["refId"],
                target["expr"],
                target["legendFormat"],
                target["instant"],
            )


def all_queries() -> list[PanelQuery]:
    """The queries of the panels of all dashboards."""
    return [query for name in names() for query in panel_queries(name)]
