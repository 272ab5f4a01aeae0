"""The documents describe what the code does, and name decisions and tests that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from agent.cli import build_parser
from watchtower.alerts.settings import AlertSettings
from watchtower.cli import make_parser
from watchtower.commands.client import MEANINGS
from watchtower.config import OTHER_TABLES, TowerConfig
from watchtower.drills.settings import DrillSettings
from watchtower.policy import Policy
from watchtower.service.command_line import list_commands
from watchtower.store.retention import Retention
from watchtower.ui.settings import PageSettings

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize("item", [*fields(Policy), *fields(Retention)], ids=lambda item: item.name)
def test_every_detection_and_retention_setting_is_documented_with_default_range_and_meaning(item):
    low, high, doc = (item.metadata[key] for key in ("low", "high", "doc"))
    row = f"| `{item.name}` | {item.default:g} | {low:g} to {high:g} | {doc} |"
    assert row in read("docs/settings.md")


@pytest.mark.parametrize("item", fields(DrillSettings), ids=lambda item: item.name)
def test_every_drill_setting_is_documented_with_its_default(item):
    is_number = not isinstance(item.default, str | bool)
    shown = f"{item.default:g}" if is_number else f"`{json.dumps(item.default)}`"
    assert f"| `{item.name}` | {shown} |" in read("docs/settings.md")


def test_every_tower_setting_is_documented_and_no_other():
    page = read("docs/settings.md")
    table = page[page.index("## `[tower]`") : page.index("## `[detection]`")]
    documented = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert documented == {item.name for item in fields(TowerConfig)} - OTHER_TABLES


def test_no_setting_is_documented_that_does_not_exist():
    documented = set(re.findall(r"^\| `(\w+)` \|", read("docs/settings.md"), re.MULTILINE))
    kinds = (Policy, Retention, TowerConfig, AlertSettings, PageSettings, DrillSettings)
    assert documented <= {item.name for kind in kinds for item in fields(kind)}


def settings_table(name: str) -> list[tuple[str, str]]:
    """Key and meaning of each row of one table, in order."""
    page = read("docs/settings.md")
    table = page[page.index(f"## `[{name}]`") :]
    table = table[: table.find("\n## ", 1)] if "\n## " in table else table
    return re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", table, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tower", TowerConfig),
        ("detection", Policy),
        ("retention", Retention),
        ("alerts", AlertSettings),
        ("pages", PageSettings),
        ("drill", DrillSettings),
    ],
)
def test_every_settings_row_is_in_its_place_and_makes_sense_alone(name, kind):
    rows = settings_table(name)
    in_file = [item.name for item in fields(kind) if item.name not in OTHER_TABLES]
    assert [key for key, _ in rows] == in_file
    for key, meaning in rows:
        assert not re.match(r"\.\.\.|or\b|but\b|it\b|its\b|they\b|such\b", meaning, re.I), key


def test_every_command_is_in_the_list():
    parser = make_parser()
    (commands,) = [a for a in parser._actions if hasattr(a, "choices") and a.choices]
    for name in commands.choices:
        assert f"watchtower {name}" in read("docs/commands.md")


def test_every_file_that_the_documents_name_exists():
    for page in [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "dashboards/README.md",
        *map(str, (ROOT / "docs").rglob("*.md")),
    ]:
        folder = (ROOT / page).parent
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text("utf-8")):
            assert (folder / link).exists(), f"{page} links to {link}"


def test_every_module_that_maintainers_are_sent_to_exists():
    """A path such as `jobs/keeper.py` is the end of the path of a file; NAME stands for any."""
    trees = ("agent", "benchmarks", "dashboards", "deploy", "docs", "heartbeat", "tests")
    files = [path for tree in (*trees, "watchtower") for path in (ROOT / tree).rglob("*.*")]
    known = "\n".join(f"/{path.relative_to(ROOT).as_posix()}" for path in files) + "\n"
    records = sorted((ROOT / "docs/decisions").glob("*.md"))
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", ROOT / "docs/architecture.md"]
    for page in [*pages, *records]:
        for path in re.findall(r"`((?:[\w-]+/)+[\w.-]+\.(?:py|toml|sql))`", page.read_text()):
            assert "NAME" in path or f"/{path}\n" in known, f"{page.name} names {path}"


@pytest.mark.parametrize(
    "tree", ["watchtower", "agent", "heartbeat", "tests", "benchmarks", "dashboards", "examples"]
)
def test_no_file_attracts_everything(tree):
    for path in (ROOT / tree).rglob("*.py"):
        lines = len(path.read_text("utf-8").splitlines())
        assert lines <= 500, f"{path.relative_to(ROOT)} has {lines} lines: split it by meaning"


def test_facts_name_nothing_of_our_own_drills():
    programs = ROOT / "watchtower/drills/programs"
    modules = {path.stem for path in programs.glob("*.py")} - {"data", "model", "checkpoint"}
    for path in (ROOT / "watchtower/evidence/facts").glob("*.toml"):
        text = path.read_text("utf-8")
        for module in modules:
            assert f"{module}.py" not in text, f"{path.name} names {module}.py"


def test_the_exit_codes_of_the_page_are_those_of_the_commands():
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", read("docs/commands.md"), re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == MEANINGS


def test_the_page_has_the_options_that_commands_have():
    page = read("docs/commands.md")
    commands = {each.name: each for each in list_commands(make_parser())}
    options = {
        name: {option for each in command.options for option in each.names}
        for name, command in commands.items()
    }
    asking = {name for name, known in options.items() if "--tower" in known}
    text = page[: page.index("have these options")]
    assert set(re.findall(r"`(\w+)`", text)) == asking
    for option in ("--tower", "--token-file", "--ca-file", "--insecure"):
        assert f"`{option}" in page
        assert {name for name, known in options.items() if option in known} >= asking
    watching = re.search(r"`--watch` \(of (.+)\)", page)
    assert {name for name, known in options.items() if "--watch" in known} == set(
        re.findall(r"`(\w+)`", watching[1])
    )
    listing = re.search(r"`--drills` \(of (.+)\)", page)
    assert {name for name, known in options.items() if "--drills" in known} == set(
        re.findall(r"`(\w+)`", listing[1])
    )
    # `export` and `postmortem` write documents, `condition`, `run` and `requeue` lines. `replay`
    # and `drill` print JSON of their own.
    assert {name for name, known in options.items() if "--json" in known} == (
        asking - {"export", "postmortem", "mcp", "condition", "run", "requeue"}
        | {"replay", "diagnose", "drill"}
    )


def test_the_gain_by_heartbeats_is_measured():
    """The table of the page, against the medians of the accuracy page."""
    page = read("docs/accuracy.md")

    def median(fault: str) -> str:
        row = re.search(rf"^\| {fault} \| torch \|(?:[^|]*\|){{4}} ([\d.]+) \|", page, re.MULTILINE)
        return row[1] if row else ""

    faults = ["dataloader_sleep", "sigstop", "conditional_collective", "tp_dp_cascade", "d_state"]
    wanted = [(median(fault), median(f"{fault}_no_heartbeat")) for fault in faults]
    assert re.findall(r"\| ([\d.]+) s \| ([\d.]+) s \|", read("docs/heartbeat.md")) == wanted


def test_no_text_for_users_promises_that_somebody_is_paged():
    pages = ["README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
    helps = make_parser().format_help()
    for text in (helps, *map(read, pages)):
        assert not re.search(r"\bpage[sd]? (?:somebody|nobody)\b|\bis paged\b", text)


ACTORS = (
    "A local user",
    "The user of a job",
    "A node",
    "The holder of an agent's token",
    "A reader",
    "A web page of another site",
    "The network",
)


def rows_of(actor: str) -> list[list[str]]:
    """The cells of each row of an actor's table, below its head."""
    page = (ROOT / "docs/security.md").read_text("utf-8")
    section = page.partition(f"\n### {actor}\n")[2].partition("\n##")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize("actor", ACTORS)
def test_every_row_names_a_file_of_tests_or_says_that_there_is_none(actor: str) -> None:
    rows = rows_of(actor)
    assert rows
    for row in rows:
        assert len(row) == 3, row
        attempt, _, shown_by = row
        named = re.fullmatch(r"`(tests/[\w/]+\.py)`", shown_by)
        assert (shown_by == "no test") != bool(named), attempt
        assert not named or (ROOT / named[1]).is_file(), attempt


def test_every_actor_has_a_table() -> None:
    page = (ROOT / "docs/security.md").read_text("utf-8")
    section = page.partition("\n## What each actor can do\n")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^### (.*)$", section, re.MULTILINE)) == ACTORS


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


@pytest.mark.parametrize("patch", sorted(ROOT.glob("docs/recipes/*.patch")), ids=lambda p: p.stem)
def test_a_recipe_fits_the_sources(patch: Path):
    """What it does when it is applied is tested in tests/system/contract."""
    for part in re.split(r"^--- ", patch.read_text("utf-8"), flags=re.M)[1:]:
        name = part.partition("\n")[0].removeprefix("a/")
        source = "" if name == "/dev/null" else (ROOT / name).read_text("utf-8")
        for hunk in re.split(r"^@@ .*\n", part, flags=re.M)[1:]:
            before = [line[1:] for line in hunk.splitlines(keepends=True) if line[0] in " -"]
            assert "".join(before) in source, f"{name}: write this part of the recipe anew"


def test_every_command_and_file_of_the_coverage_exists():
    rows = [
        row.split(" | ") for row in read("docs/coverage.md").splitlines() if row.startswith("| ")
    ]
    known = {each.name for each in list_commands(make_parser())}
    agents = {each.name for each in list_commands(build_parser())}
    assert len(rows) > 15
    for row in rows[1:]:
        for program, command in re.findall(r"`(watchtower(?:-agent)?) ([a-z]+)", row[1]):
            assert command in (known if program == "watchtower" else agents), row
        (shown,) = re.findall(r"`([^`]+)`", row[3])
        assert (ROOT / shown).exists(), row
