"""The [drill] section: what is accepted, and what an error says."""

import pytest

from watchtower.alerts.settings import ALERT_SECRETS
from watchtower.drills.children import _without_tokens
from watchtower.drills.errors import DrillError
from watchtower.drills.notifying import make_notify
from watchtower.drills.settings import (
    Config,
    DrillSettings,
    changed_settings,
    parse_settings,
    read_config,
)


def write(folder, text):
    path = folder / "drill.toml"
    path.write_text(text)
    return path


def test_no_file_means_the_defaults():
    assert read_config(None) == Config()


def test_sections_of_tower_and_drill_are_kept_apart(tmp_path):
    path = write(tmp_path, "[drill]\nstep_s = 0.2\n[detection]\nsuspect_floor_s = 1\n[tower]\n")
    config = read_config(path)
    assert config.drill.step_s == 0.2
    assert config.detection == {"suspect_floor_s": 1}


def test_a_whole_number_is_accepted_where_seconds_are_wanted():
    assert parse_settings({"step_s": 2}) == DrillSettings(step_s=2.0)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"stepp_s": 1}, ["stepp_s", "unknown setting", "did you mean `step_s`"]),
        ({"step_s": "fast"}, ["step_s", "'fast'", "a number"]),
        ({"step_s": True}, ["step_s", "True", "a number"]),
        ({"warmup_steps": 1.5}, ["warmup_steps", "1.5", "whole number"]),
        ({"step_s": 0}, ["step_s", "0", "above 0"]),
        ({"step_s": float("nan")}, ["step_s", "nan", "above 0"]),
        ({"eval_s": float("inf")}, ["eval_s", "inf", "above 0"]),
        ({"jitter": 0.9}, ["jitter", "0.9", "0.4"]),
    ],
)
def test_a_bad_setting_names_key_value_and_what_is_allowed(section, words):
    with pytest.raises(DrillError) as caught:
        parse_settings(section)
    assert all(word in str(caught.value) for word in words)


def test_a_section_nobody_knows_is_refused(tmp_path):
    with pytest.raises(DrillError, match=r"`dril` in .* allowed are \[detection\]"):
        read_config(write(tmp_path, "[dril]\nstep_s = 1\n"))


@pytest.mark.parametrize("text", ["drill = 3\n", "[drill\n"])
def test_what_is_no_section_or_no_toml_is_refused(tmp_path, text):
    with pytest.raises(DrillError):
        read_config(write(tmp_path, text))


def test_a_missing_file_is_refused_with_its_name(tmp_path):
    with pytest.raises(DrillError, match=r"gone\.toml"):
        read_config(tmp_path / "gone.toml")


def test_only_what_differs_from_the_defaults_is_listed():
    config = Config(
        drill=DrillSettings(step_s=0.2, jitter=0.15), detection={"suspect_floor_s": 1.0}
    )
    assert changed_settings(config, {"startup_grace_s": 5.0}) == {
        "drill.step_s": 0.2,
        "detection.suspect_floor_s": 1.0,
        "detection.startup_grace_s": 5.0,
    }
    assert changed_settings(Config(), {}) == {}


def test_only_the_destination_that_is_notified_gets_its_settings_and_secrets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = {
        "slack_channel": "C0",
        "slack_token_file": "token",
        "pagerduty_url": "https://x.example",
        "shadow": True,
    }
    environment = {"WATCHTOWER_SLACK_WEBHOOK": "a", "WATCHTOWER_PAGERDUTY_KEY": "b", "PATH": "/"}
    slack = make_notify("slack", table, environment)
    assert slack.table == {
        "drill": True,
        "slack_channel": "C0",
        "slack_token_file": str(tmp_path / "token"),
    }
    assert slack.secrets == {"WATCHTOWER_SLACK_WEBHOOK": "a"}


def test_no_process_of_a_drill_gets_a_secret_that_is_not_meant_for_it():
    environment = dict.fromkeys(ALERT_SECRETS, "secret") | {"PATH": "/"}
    assert "WATCHTOWER_SLACK_WEBHOOK" in ALERT_SECRETS
    assert _without_tokens(environment) == {"PATH": "/"}
