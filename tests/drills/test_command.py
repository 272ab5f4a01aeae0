"""`watchtower drill` without a drill: the list, and why one could not run."""

import argparse
import io
import json

import pytest

from watchtower.drills.command import (
    LIST_WIDTH,
    NOT_RUN,
    RIGHT,
    add_arguments,
    is_attended,
    run,
)


def command(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(words))


def test_the_list_needs_no_name(capsys):
    assert command("--list") == RIGHT
    lines = capsys.readouterr().out.splitlines()
    assert "  dataloader_sleep -> dataloader_stall" in lines
    assert "  order_swap -> mismatched_collective  [torch, queued]" in lines
    assert "  graph_replay -> healthy  [queued]" in lines
    assert max(map(len, lines)) <= LIST_WIDTH


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "missing NAME of a drill"),
        (["nonsense"], "no drill is called 'nonsense'"),
        (["sigstop", "--ranks", "1"], "--ranks 1"),
        (["sigstop", "--nodes", "9"], "--nodes 9"),
        (["sigstop", "--rank", "8"], "--rank 8: allowed is 0 to 7"),
        (["sigstop", "--config", "/nowhere.toml"], "/nowhere.toml"),
    ],
)
def test_a_drill_that_cannot_run_says_why(capsys, words, reason):
    assert command(*words) == NOT_RUN
    assert reason in capsys.readouterr().err


def test_the_reason_is_also_there_for_machines(capsys):
    assert command("nonsense", "--json") == NOT_RUN
    assert "nonsense" in json.loads(capsys.readouterr().out)["reason"]


@pytest.mark.parametrize(
    ("on_terminal", "ci", "attended"),
    [(True, None, True), (True, "false", True), (True, "true", False), (False, None, False)],
)
def test_a_pipe_and_a_ci_system_are_not_a_person(on_terminal, ci, attended):
    class Stream(io.StringIO):
        def isatty(self):
            return on_terminal

    assert is_attended(Stream(), {} if ci is None else {"CI": ci}) is attended
