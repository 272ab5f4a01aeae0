"""Writes what is generated from or into docs/: `python -m tests.generated_docs`.

A generated part is between the lines `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from agent.metric_table import AGENT_METRICS
from watchtower.api.metric_table import TOWER_METRICS
from watchtower.evidence.facts import read_facts
from watchtower.fleet.advisories import ROWS
from watchtower.service.metric_spec import MetricSpec

ROOT = Path(__file__).parents[1]


def make_table(specs: Iterable[MetricSpec]) -> str:
    """Return metrics as a Markdown table."""
    rows = [
        f"| `{spec.name}` | {spec.kind.value} | {', '.join(spec.labels)} | {spec.help} |"
        for spec in specs
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])


def list_error_texts() -> str:
    """Return the known texts of errors as a Markdown table."""
    head = ("error", "for example", "meaning", "strength", "to blame", "call", "what helps")
    rows = [head, ("---",) * len(head)]
    for each in read_facts("error_texts")["error"]:
        advice = each.get("advice", "").format(node="the node", rank="N").replace("|", "\\|")
        rows.append(
            (
                f"`{each['name']}`",
                f"`{each['example'].replace(' | ', ' / ')}`",
                each["means"],
                each["strength"],
                each["blames"].replace("_", " "),
                each.get("domain", ""),
                advice,
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def list_advisories() -> str:
    """Return the advisories as a Markdown table."""
    head = ("advisory", "level", "about", "why it matters", "what to do")
    rows = [head, ("---",) * len(head)]
    names = {"job": "JOB", "node": "NODE", "subject": "it"}
    names["command"] = "`watchtower doctor JOB`"
    for row in ROWS:
        about = "a job" if row.find is not None else "a node"
        rows.append(
            (f"`{row.name}`", row.level.value, about, row.why, row.advice.format_map(names))
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/metrics.md": {
        "metrics of the tower": lambda: make_table(TOWER_METRICS),
        "metrics of the agent": lambda: make_table(AGENT_METRICS),
    },
    "docs/advisories.md": {"advisories": list_advisories},
    "docs/error-texts.md": {"known texts": list_error_texts},
}
"""The generated parts of each page, by name."""


RUNBOOKS = "watchtower/incidents/postmortem/runbooks.toml"


def make_runbooks() -> str:
    """Return the parts of the pages of causes that a post-mortem quotes, as TOML."""
    lines = ["# Written by `make docs` from docs/runbooks/causes.", ""]
    for page in sorted((ROOT / "docs/runbooks/causes").glob("*.md")):
        pieces = re.split(r"^\*\*(\w+)\.\*\* ", page.read_text("utf-8"), flags=re.MULTILINE)
        parts = dict(zip(pieces[1::2], pieces[2::2], strict=True))
        lines.append(f"[{page.stem}]")
        for name in ("Fix", "Prevent"):
            lines.append(f"{name.lower()} = '''\n{parts[name].strip()}\n'''")
        lines.append("")
    return "\n".join(lines)


def generate(page: str, text: str) -> str:
    """Return the text of a page with its generated parts written again."""
    for name, make in PARTS[page].items():
        begin, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
        assert text.count(begin) == 1, f"{page} has no part {name!r}, or two"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{make()}\n\n{end}{rest.split(end, 1)[1]}"
    return text


def main() -> None:
    """Write all pages."""
    for page in PARTS:
        path = ROOT / page
        path.write_text(generate(page, path.read_text("utf-8")), "utf-8")
    (ROOT / RUNBOOKS).write_text(make_runbooks(), "utf-8")


if __name__ == "__main__":
    main()
