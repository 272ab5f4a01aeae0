"""Each claim of docs/security.md about an actor names the tests that show it, or says "no test"."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.system.e2e.drilled import names_of_drills

ROOT = Path(__file__).parents[2]
ACTORS = (
    "A local user",
    "The user of a job",
    "A node",
    "The holder of an agent's token",
    "A reader",
    "A web page of another site",
    "The network",
)
NAME = re.compile(r"`(tests/[\w/]+\.py)::(\w+)(?:\[(\w+)\])?`")
DRILLED = "test_the_drill_gets_the_right_rank_and_cause"


def rows_of(actor: str) -> list[list[str]]:
    """The cells of each row of an actor's table, below its head."""
    page = (ROOT / "docs/security.md").read_text("utf-8")
    section = page.partition(f"\n### {actor}\n")[2].partition("\n##")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@cache
def names_in(path: str) -> frozenset[str]:
    text = (ROOT / path).read_text("utf-8")
    return frozenset(re.findall(r"^ *(?:async )?def (\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("actor", ACTORS)
def test_every_row_names_tests_that_exist_or_says_that_there_is_none(actor: str) -> None:
    rows = rows_of(actor)
    assert rows
    for row in rows:
        assert len(row) == 3, row
        attempt, _, shown_by = row
        assert (shown_by == "no test") != bool(NAME.search(shown_by)), attempt
        assert NAME.sub("", shown_by).strip() in ("", "no test"), attempt
        for path, name, case in NAME.findall(shown_by):
            assert (ROOT / path).is_file(), path
            assert name in names_in(path), f"{path} has no {name}"
            if case:
                assert name == DRILLED
                assert case in names_of_drills("stdlib")


def test_every_actor_has_a_table() -> None:
    page = (ROOT / "docs/security.md").read_text("utf-8")
    section = page.partition("\n## What each actor can do\n")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^### (.*)$", section, re.MULTILINE)) == ACTORS
