"""Every decision is found by a question, and every mention of one leads to a record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDS = {path.name: path for path in (ROOT / "docs/decisions").glob("[0-9]*.md")}
NUMBERS = {name[:3] for name in RECORDS}
INDEX = (ROOT / "docs/decisions/README.md").read_text("utf-8")

FOLDERS = ("agent", "benchmarks", "dashboards", "deploy", "docs", "examples", "heartbeat")
FOLDERS += ("tests", "watchtower")
TEXTS = {
    ".md",
    ".mk",
    ".py",
    ".toml",
    ".service",
    ".sysusers",
    ".yml",
    ".html",
    ".js",
    ".css",
    ".patch",
}


def texts() -> Iterator[tuple[Path, str]]:
    """Every text that a person writes: documents, code, tests, settings."""
    paths = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".ci/run"]
    for folder in FOLDERS:
        paths += [path for path in (ROOT / folder).rglob("*") if path.suffix in TEXTS]
    for path in paths:
        yield path.relative_to(ROOT), path.read_text("utf-8")


def test_every_decision_is_in_the_index_once() -> None:
    rows = re.findall(r"^\| .+ \| .+ \| \[(\d{3})\]\(([^)]+)\) \|$", INDEX, re.MULTILINE)
    assert sorted(name for _, name in rows) == sorted(RECORDS)
    assert all(name.startswith(f"{number}-") for number, name in rows)


def test_the_heading_of_a_record_has_its_number() -> None:
    for name, path in RECORDS.items():
        assert path.read_text("utf-8").startswith(f"# {name[:3]} "), name


def test_every_number_in_code_and_documents_is_that_of_a_record() -> None:
    for path, text in texts():
        mentions = re.findall(r"\b[Dd]ecisions? \[?(\d{3})\b|decisions/(\d{3})-", text)
        mentions += re.findall(r"\[(\d{3})\]\((\d{3})-", text)
        if path.name in RECORDS:
            mentions += [(number, "") for number in re.findall(r"\((\d{3})[,)]", text)]
        unknown = {number for pair in mentions for number in pair if number} - NUMBERS
        assert not unknown, f"{path} mentions {sorted(unknown)}"


def test_a_number_without_a_record_leads_to_one() -> None:
    for gone, number in re.findall(r"^\| ([\d, ]+) \| (\d{3}) \|$", INDEX, re.MULTILINE):
        assert number in NUMBERS
        assert not set(gone.split(", ")) & NUMBERS
