"""Every command, unit and file that docs/install.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.cli import build_parser
from tests.deploy.install_page import PAGE, ROOT, commands
from watchtower.cli import make_parser


def test_the_page_tells_something_to_type():
    assert len(commands()) > 20


def test_every_unit_of_the_page_exists():
    units = {path.stem for path in (ROOT / "deploy/systemd").glob("*.service")}
    named = set(
        re.findall(r"(?:systemctl [a-z]+(?: --now)?|journalctl -u) (watchtower-\S+?)[ `\n]", PAGE)
    )
    assert named == units


def test_every_file_in_etc_that_the_page_names_is_shipped_or_handed_over_by_a_unit():
    deployed = list((ROOT / "deploy/systemd").iterdir())
    known = {path.name for path in deployed} | {"ca.pem"}
    for path in deployed:
        text = path.read_text("utf-8")
        known.update(re.findall(r"LoadCredential=\S+:/etc/watchtower/(\S+)", text))
    assert set(re.findall(r"/etc/watchtower/([\w.-]*\w)", PAGE)) <= known


@pytest.mark.parametrize("words", [w for w in commands() if Path(w[0]).name.startswith("watch")])
def test_every_option_of_the_page_is_understood(words: list[str]):
    is_agent = Path(words[0]).name == "watchtower-agent"
    parser = build_parser() if is_agent else make_parser()
    parser.parse_args(words[1:])


def test_every_option_in_the_example_settings_exists():
    text = (ROOT / "deploy/systemd/agent.env").read_text("utf-8")
    known = build_parser().parse_args
    for option, value in re.findall(r"^#   (--[a-z-]+) (\S+)", text, re.MULTILINE):
        known(["run", "--tower", "http://t", option, value])
    for option in re.findall(r"`(--[a-z-]+)", PAGE):
        assert option in {"--match", "--node", "--root", "--strict"}, option
