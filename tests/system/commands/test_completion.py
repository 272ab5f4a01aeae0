"""The completion scripts in the shells that are here."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from watchtower.cli import make_parser
from watchtower.completing import SHELLS, list_commands, write_script

SCRIPTS = {
    shell: write_script(shell, "watchtower", list_commands(make_parser())) for shell in SHELLS
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_reads_its_script(shell: str, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(SCRIPTS[shell])
    done = subprocess.run(
        [shell, "-n", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["inc"], ["incidents", "incident"]),
        (["why", "--ex"], ["--exit-code"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["drill", "--backend", "st"], ["stdlib"]),
        (["jobs", "--tower", ""], []),
        (["help", "unm"], ["unmute"]),
    ],
)
def test_bash_offers_what_may_follow(words: list[str], offered: list[str]):
    line = " ".join(f"'{word}'" for word in ["watchtower", *words])
    script = (
        f"{SCRIPTS['bash']}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}\n"
        '_watchtower; [ ${#COMPREPLY[@]} -eq 0 ] || printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-u", "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == offered
