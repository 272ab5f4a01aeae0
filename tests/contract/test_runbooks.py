"""Every alert and every cause has a page that says what to do."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from agent.cli import build_parser
from tests.console import find_blocks, find_commands
from watchtower.alerts.labels import DIED_DOMAINS
from watchtower.alerts.message import NO_RANK, AlertFacts, find_loss, write_message
from watchtower.cli import make_parser
from watchtower.diagnosis import causes
from watchtower.wire.verdict import Cause

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "runbooks"
ALERTS = sorted((FOLDER / "alerts").glob("*.md"))
CAUSES = sorted((FOLDER / "causes").glob("*.md"))
PAGES = [*ALERTS, *CAUSES]
INDEX = FOLDER / "README.md"
PARTS = ("Confirm", "Fix", "Prevent")
MAX_LINES = 25

WITHOUT_A_RULE = {Cause.JOB_SLOW.value, Cause.UNKNOWN.value}
"""The answers of a diagnosis whose rules all found nothing."""
PRODUCED = {each.cause.value for each in (*causes.CAUSES, *causes.SLOW_CAUSES)} | WITHOUT_A_RULE
NO_RULE = "No rule of this release names this cause."

WORDS_OF_TOOLS = {
    "ALERTS",
    "CONT",
    "DETAIL",
    "DRAIN",
    "ECC",
    "ERROR",
    "KILL",
    "NVML",
    "NVRM",
    "WARNING",
} | {
    "PERFORMANCE",
    "ROW_REMAPPER",
}
"""Words in capitals that are typed as they are. All others are placeholders."""


def read(page: Path) -> str:
    return page.read_text("utf-8")


def find_calls(page: Path) -> list[list[str]]:
    """Return the commands of a page without the variables that are set for them."""
    commands = find_commands(read(page))
    return [[*itertools.dropwhile(is_variable, words)] for words in commands]


def is_variable(word: str) -> bool:
    return re.match(r"[A-Z_]+=", word) is not None


def split_parts(page: Path) -> list[tuple[str, str]]:
    """Return the name and the text of each part, in order."""
    pieces = re.split(r"^\*\*(\w+)\.\*\* ", read(page), flags=re.MULTILINE)
    return list(zip(pieces[1::2], pieces[2::2], strict=True))


def find_alerts() -> set[str]:
    """Return the name of every alert rule in the documents and in what is deployed."""
    files = [path for tree in ("docs", "deploy") for path in (ROOT / tree).rglob("*.*")]
    texts = [read(path) for path in files if path.suffix in (".md", ".yml", ".yaml")]
    return {name for text in texts for name in re.findall(r"- alert: (\w+)", text)}


def test_every_cause_has_its_page_and_no_other():
    assert {page.stem for page in CAUSES} == {cause.value for cause in Cause}


def test_every_alert_has_its_page():
    found = find_alerts()
    assert "WatchtowerJobHung" in found
    assert found <= {page.stem for page in ALERTS}


@pytest.mark.parametrize("page", CAUSES, ids=lambda page: page.stem)
def test_a_page_says_so_if_no_rule_produces_its_cause(page: Path):
    says_so = NO_RULE in " ".join(read(page).split())
    assert says_so is (page.stem not in PRODUCED), f"{page.name} must have or lose: {NO_RULE}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_its_name_and_three_parts_with_a_command_each(page: Path):
    lines = read(page).splitlines()
    assert lines[0] == f"# {page.stem}"
    assert len(lines) <= MAX_LINES
    parts = split_parts(page)
    assert tuple(name for name, _ in parts) == PARTS
    for name, part in parts:
        assert len(find_blocks(part)) == 1, name
        explained = part.split("```")[0]
        assert len(explained.split()) >= 8, f"{name}: what does the output show?"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_ours_parses_and_every_other_tool_is_in_the_index(page: Path):
    tools = set(re.findall(r"^\| `([\w-]+)` \|", read(INDEX), re.MULTILINE))
    for words in find_calls(page):
        if words[0] == "watchtower":
            make_parser().parse_args(words[1:])
        elif words[0] == "watchtower-agent":
            build_parser().parse_args(words[1:])
        else:
            assert words[0] in tools, f"{words[0]} is not a tool of the index"


def test_every_tool_of_the_index_is_used():
    tools = set(re.findall(r"^\| `([\w-]+)` \|", read(INDEX), re.MULTILINE))
    used = {words[0] for page in PAGES for words in find_calls(page)}
    assert tools == used - {"watchtower", "watchtower-agent"}


def test_every_placeholder_is_explained_in_the_index_and_no_other():
    explained = set(re.findall(r"^\| ([A-Z_]+) \|", read(INDEX), re.MULTILINE))
    words = {word for page in PAGES for call in find_calls(page) for word in call[1:]}
    named = {name for word in words for name in re.findall(r"\b[A-Z][A-Z_]+\b", word)}
    assert named - WORDS_OF_TOOLS == explained


def test_the_index_links_to_every_page():
    links = set(re.findall(r"\]\(([^)#]+)\)", read(INDEX)))
    assert {f"{page.parent.name}/{page.name}" for page in PAGES} <= links


def test_the_index_has_the_severity_of_each_alert_and_the_most_severe_first():
    files = sorted((ROOT / "deploy/prometheus").glob("*.rules.yml"))
    rules = [rule for file in files for rule in read(file).split("- alert: ")[1:]]
    severities = {rule.split("\n", 1)[0]: re.findall(r"severity: (\w+)", rule)[0] for rule in rules}
    rows = re.findall(r"^\| \[(\w+)\]\(alerts/\S+ \| (\w+) \|", read(INDEX), re.MULTILINE)
    assert dict(rows) == severities
    order = ["critical", "warning", "info", "none"]
    assert [severity for _, severity in rows] == sorted(severities.values(), key=order.index)


@pytest.mark.parametrize("name", ["docs/verdicts.md", "README.md"])
def test_the_documents_lead_to_the_runbooks(name: str):
    assert "runbooks/README.md" in (ROOT / name).read_text("utf-8")


def test_every_link_to_a_section_resolves():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target, section in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", read(page)):
            linked = (page.parent / target) if target else page
            assert section in anchors(read(linked)), f"{page.name} links to {target}#{section}"


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_rules_use_the_words_of_the_direct_message():
    rules = read(ROOT / "deploy/prometheus/watchtower.rules.yml")
    lost = find_loss(AlertFacts(status="hung", dumps_in=1, dumps_wanted=2), now=None)
    assert lost is not None
    for words in ("A kill now loses evidence (stacks of only ", "are collected)."):
        assert words in rules
        assert words in lost.evidence_text
    assert NO_RANK in rules
    lines = write_message(AlertFacts(advice="check the mount", incident="01A"))
    for words in ("Before you call: ", "Acknowledge: watchtower ack "):
        assert words in rules
        assert words in " ".join(lines)


def test_the_rule_about_ended_jobs_has_the_domains_of_the_direct_alert():
    rules = read(ROOT / "deploy/prometheus/watchtower.rules.yml")
    (found,) = re.findall(r'watchtower_incident_ended\{domain=~"([a-z|]+)"\}', rules)
    assert set(found.split("|")) == {domain.value for domain in DIED_DOMAINS}
