"""The command that starts a module of ours, by value. Interpreters run it in the system tier."""

from __future__ import annotations

import sys

from watchtower.service.interpreter import module_command


def test_the_module_and_its_words_come_last_and_the_interpreter_first():
    command = module_command("watchtower", "serve", "--port", "0", python="/opt/python")
    assert command[0] == "/opt/python"
    assert command[-4:] == ("watchtower", "serve", "--port", "0")
    assert module_command("agent")[0] == sys.executable


def test_its_only_option_is_as_old_as_python():
    assert [word for word in module_command("agent") if word.startswith("-")] == ["-c"]
