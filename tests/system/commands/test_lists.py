"""The lists of a real tower in every form, and by a context."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.towers import RunningTower
from watchtower.cli import main

LISTS = ("jobs", "nodes", "incidents", "outages", "silences", "advisories")
FORMS = ("table", "wide", "json", "yaml", "name")
MISSING = {
    ("outages", "wide"),
    ("silences", "wide"),
    ("advisories", "wide"),
    ("advisories", "name"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_has_every_form(hung_tower: RunningTower, capsys, name: str):
    def ask(*words: str) -> str:
        assert main([name, "--tower", hung_tower.url, *words]) == 0
        return capsys.readouterr().out

    shown = {form: ask("-o", form) for form in FORMS if (name, form) not in MISSING}
    answer = json.loads(ask("--json"))
    assert json.loads(shown["json"]).keys() == yaml.safe_load(shown["yaml"]).keys() == answer.keys()
    named = [each["job"] for each in yaml.safe_load(shown["yaml"])["items"] if "job" in each]
    assert named == [each["job"] for each in answer["items"] if "job" in each]
    if answer["items"] and name != "advisories":
        key = {"jobs": "job", "nodes": "node"}.get(name, "id")
        assert shown["name"].split("\n")[:-1] == [each[key] for each in answer["items"]]
    assert shown["table"].split(" ")[0] == ask().split(" ")[0]


def test_forms_that_a_list_does_not_have_are_refused(hung_tower: RunningTower, capsys):
    for name, form in MISSING:
        with pytest.raises(SystemExit):
            main([name, "-o", form, "--tower", hung_tower.url])
        assert "invalid value" in capsys.readouterr().err


def test_the_wide_table_shows_more(hung_tower: RunningTower, capsys):
    def head(*words: str) -> list[str]:
        assert main([*words, "--tower", hung_tower.url]) == 0
        return capsys.readouterr().out.split("\n")

    first, row, *_ = head("nodes")
    assert first.split() == ["NODE", "AGENT", "RANKS", "TO", "BLAME", "NAMED", "JOBS"]
    assert row.split()[:2] == ["node-of-llama", "reports"]
    assert {"RELEASE", "LIMITS"} < set(head("nodes", "-o", "wide")[0].split())
    assert "PARTITION" in head("jobs", "-o", "wide")[0]
    summary = head("incidents", "-o", "wide")
    assert "SUMMARY" in summary[0]
    assert "process is stopped" in summary[1] or "rank 1" in summary[1].lower()


def test_a_context_leads_to_its_tower(
    hung_tower: RunningTower, tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("WATCHTOWER_URL", raising=False)
    (tmp_path / "watchtower.toml").write_text(f'[contexts.here]\ntower = "{hung_tower.url}"\n')
    assert main(["jobs", "-o", "name", "--context", "here"]) == 0
    assert capsys.readouterr().out == "llama\n"
