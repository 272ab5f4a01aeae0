"""The JSON files of the dashboards against the types that Grafana publishes on npm.

Unknown keys and wrong types fail. `make dashboard-types` installs the two packages and runs this.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard_queries import load, names

ROOT = Path(__file__).parents[2]
MODULES = ROOT / ".venv/grafana/node_modules"
COMPILER = MODULES / "typescript/bin/tsc"

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not COMPILER.exists(),
    reason="Grafana's types are not installed: `make dashboard-types` (needs npm)",
)

TYPES = "@grafana/schema/dist/esm/raw"
PANELS = {
    "barchart": "BarChart",
    "bargauge": "BarGauge",
    "stat": "Stat",
    "state-timeline": "StateTimeline",
    "table": "Table",
    "timeseries": "TimeSeries",
}
WITHOUT_FIELDS = {"bargauge", "stat"}
"""Kinds of panels that have no settings for fields."""

OF_PROMETHEUS = {"expr", "step", "tagKeys", "textFormat", "titleFormat"}
"""Keys of annotations that Grafana's Prometheus data source reads; no type has them."""

LOOSE = """
type Loose<T> =
  T extends string ? `${T}`
  : T extends number
    ? (number extends T ? number : `${T}` extends `${infer N extends number}` ? N : T)
  : T extends boolean | null | undefined ? T
  : T extends Array<infer U> ? Array<Loose<U>>
  : T extends object ? { [K in keyof T]: Loose<T[K]> } : T;
"""
"""Literals instead of the members of enums, because JSON has only literals."""


def declare(values: list[tuple[Any, str]]) -> str:
    """A TypeScript file that compiles if each value has its type."""
    lines = [f"import * as board from './node_modules/{TYPES}/dashboard/x/dashboard_types.gen';"]
    for kind, name in PANELS.items():
        folder = kind.replace("-", "")
        path = f"{TYPES}/composable/{folder}/panelcfg/x/{name}PanelCfg_types.gen"
        lines.append(f"import * as {name} from './node_modules/{path}';")
    lines.append(LOOSE)
    for number, (value, name) in enumerate(values):
        lines.append(f"export const v{number} = {json.dumps(value)} satisfies Loose<{name}>;")
    return "\n".join(lines)


def typed(dashboard: dict[str, Any]) -> list[tuple[Any, str]]:
    """The parts of a dashboard that have a type, with its name."""
    found: list[tuple[Any, str]] = []
    for panel in dashboard["panels"]:
        name, custom = PANELS[panel["type"]], panel["fieldConfig"]["defaults"].get("custom")
        assert (custom is None) == (panel["type"] in WITHOUT_FIELDS)
        found.append((panel["options"], f"{name}.Options"))
        if custom is not None:
            found.append((custom, f"{name}.FieldConfig"))
    for annotation in dashboard["annotations"]["list"]:
        for key in OF_PROMETHEUS:
            del annotation[key]
    return [(dashboard, "board.Dashboard"), *found]


def compile_values(folder: Path, values: list[tuple[Any, str]]) -> str:
    """The errors of the compiler; empty if all is well."""
    (folder / "node_modules").symlink_to(MODULES)
    (folder / "check.ts").write_text(declare(values), "utf-8")
    words = "--noEmit --strict --skipLibCheck --moduleResolution bundler --module esnext"
    command = ["node", COMPILER, *words.split(), "--target", "es2022", "check.ts"]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert (done.returncode == 0) == (not done.stdout)
    return done.stdout


def test_every_dashboard_has_the_types_of_grafana(tmp_path: Path):
    values = [each for name in names() for each in typed(load(name))]
    assert compile_values(tmp_path, values) == ""


def test_an_unknown_key_and_a_wrong_type_are_found(tmp_path: Path):
    dashboard = load("fleet")
    dashboard["refreshes"] = "10s"
    dashboard["panels"][0]["options"]["graphMode"] = "curve"
    found = compile_values(tmp_path, typed(dashboard))
    assert "refreshes" in found
    assert '"curve"' in found
