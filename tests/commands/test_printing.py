"""The output of commands: times with a zone, colour on a terminal only, safe tables."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchtower.commands import asking
from watchtower.commands.client import DONE, UNUSABLE, exit_code_of
from watchtower.commands.printing import (
    as_json,
    as_yaml,
    clean_lines,
    paint_table,
    paint_verdict,
    table,
    wants_colour,
)
from watchtower.commands.replaying import read_bundle
from watchtower.writing.times import format_distance, format_time

NOW = 1_795_363_392.0  # 2026-11-22 16:03:12 UTC


@pytest.mark.parametrize(
    ("stamp", "text"),
    [
        ("2026-11-22T16:00:00.184Z", "2026-11-22 16:00:00 UTC (3 min ago)"),
        ("2026-11-22T17:00:00+01:00", "2026-11-22 16:00:00 UTC (3 min ago)"),
        ("2026-11-22T18:03:12Z", "2026-11-22 18:03:12 UTC (in 2 h)"),
        ("2026-11-22T16:03:12", "2026-11-22 16:03:12 UTC (now)"),
        ("soon", "soon"),
    ],
)
def test_a_time_has_a_zone_and_a_distance(stamp, text):
    assert format_time(stamp, NOW) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "now"),
        (-1, "now"),
        (42, "42 s ago"),
        (119, "119 s ago"),
        (-300, "in 5 min"),
        (7300, "2 h ago"),
        (500_000, "5 days ago"),
    ],
)
def test_a_distance_is_as_exact_as_a_reader_needs(seconds, text):
    assert format_distance(seconds) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "wanted"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colour_is_for_a_terminal_and_never_with_no_color(stream, environment, wanted):
    assert wants_colour(stream, environment) is wanted


def test_the_status_of_a_job_is_coloured_and_nothing_else():
    page = table([("JOB", "STATUS", "DETAIL"), ("hung", "hung", "x"), ("b", "odd", "hung")])
    lines = paint_table(page).split("\n")
    assert lines[1] == "hung  \x1b[31mhung\x1b[0m    x"
    assert lines[2] == page.split("\n")[2]


def test_the_headline_and_the_suspects_of_a_verdict_are_coloured():
    page = "llama: hung, dataloader_stall (99%)\nRank 3.\n  suspect: rank 3, n1\n\nb: healthy"
    lines = paint_verdict(page).split("\n")
    assert lines[0].startswith("\x1b[1;31mllama: hung")
    assert lines[1] == "Rank 3."
    assert lines[2] == "\x1b[31m  suspect: rank 3, n1\x1b[0m"
    assert lines[4].startswith("\x1b[1;32mb: healthy")


def test_no_text_of_a_process_reaches_the_terminal_as_a_command():
    assert "\x1b" not in clean_lines("a\x1b[2J\nb")
    assert "\x1b" not in table([("A", "B"), ("\x1b[2J", "\u202e")])
    assert as_json({"a": "\u202e"}).isascii()


def a_job(name, status="healthy", incident=None):
    return {"job": name, "status": status, "incident": incident}


def test_why_without_a_job_names_jobs_that_ended_in_an_incident():
    class Tower:
        def jobs(self):
            return [a_job("bert"), a_job("llama", "ended", "01J"), a_job("old", "ended")]

        def unwatched(self, job):
            text = "8 processes are not watched: second claims of job bert."
            one = {"node": "gpu-1", "job": "bert", "count": 8, "text": text}
            return {"items": [one], "rank_count": 11}

    parsed = argparse.Namespace(job=None, json=False, watch=False, exit_code=True)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert asking.show_verdict(Tower(), parsed) == DONE
    assert text.getvalue().splitlines()[1:] == [
        "Ended in an incident: llama. List them: watchtower incidents",
        "not watched on gpu-1: 8 processes are not watched: second claims of job bert.",
        "not watched elsewhere: 3 more",
    ]


def test_a_read_that_fails_is_not_a_write_that_fails(tmp_path, monkeypatch):
    def fail(_path):
        raise OSError(errno.EIO, "Input/output error")

    bundle = tmp_path / "bundle.json"
    bundle.write_text("{}")
    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(OSError, match=r"bundle\.json") as caught:
        read_bundle(bundle)
    assert exit_code_of(caught.value) == UNUSABLE


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
        lambda each: (
            st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=4), each, max_size=3)
        ),
        max_leaves=9,
    )
)
@examples(100)
def test_yaml_reads_what_was_written(answer):
    page = as_yaml(answer)
    assert yaml.safe_load(page) == answer
    assert all(line.isprintable() for line in page.split("\n"))


def test_yaml_is_what_people_write():
    answer = {"items": [{"job": "a b", "ranks": [1, 2], "no": None}, {"job": "yes"}], "left_out": 0}
    assert as_yaml(answer) == (
        'items:\n  - job: "a b"\n    ranks:\n      - 1\n      - 2\n    "no": null\n'
        '  - job: "yes"\nleft_out: 0'
    )
