"""The completion scripts in the shells that are here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from watchtower.cli import make_parser
from watchtower.service.command_line import SHELLS, list_commands, write_script

SCRIPTS = {
    shell: write_script(shell, "watchtower", list_commands(make_parser())) for shell in SHELLS
}


def need(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_reads_its_script(shell: str, tmp_path):
    need(shell)
    script = tmp_path / "script"
    script.write_text(SCRIPTS[shell])
    done = subprocess.run(
        [shell, "-n", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


OFFERED = [
    (["inc"], ["incidents", "incident"]),
    (["why", "--ex"], ["--exit-code"]),
    (["completion", ""], ["bash", "zsh", "fish"]),
    (["drill", "--backend", "st"], ["stdlib"]),
    (["help", "sta"], ["stacks"]),
]
each_line = pytest.mark.parametrize(
    ("words", "offered"), OFFERED, ids=["_".join(words) for words, _ in OFFERED]
)

TYPE_IN_ZSH = """
zmodload zsh/zpty
script=$1 line=$2; shift 2
zpty shell zsh -f -i
zpty -w shell "autoload -U compinit; compinit -u -D; source $script"
zpty -w shell "zle-line-init() { print be''gin; }; zle -N zle-line-init"
until [[ $shown == *begin* ]]; do zpty -r shell shown || exit 1; done
zpty -w -n shell "$line"$'\\x04'
shown=
for (( tries = 0; tries < 400; tries++ )); do
    zpty -r -t shell piece && shown+=$piece || sleep 0.05
    missing=
    for word in "$@"; do [[ $shown == *$word* ]] || missing+=" $word"; done
    [[ -z $missing ]] && exit 0
done
print -r "$missing is not in: $shown" >&2
exit 1
"""
"""Types a line and Ctrl-D, which lists what may follow, into a zsh that has read a script. Waits
until it shows all of some words."""


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@each_line
def test_zsh_offers_what_may_follow(words: list[str], offered: list[str], tmp_path: Path):
    need("zsh")
    script = tmp_path / "script"
    script.write_text(SCRIPTS["zsh"])
    run("zsh", "-f", "-c", TYPE_IN_ZSH, "zsh", script, " ".join(["watchtower", *words]), *offered)


@each_line
def test_fish_offers_what_may_follow(words: list[str], offered: list[str]):
    need("fish")
    line = " ".join(["watchtower", *words])
    script = f'{SCRIPTS["fish"]}\ncomplete -C "{line}"'
    found = run("fish", "--no-config", "-c", script).splitlines()
    assert sorted(each.partition("\t")[0] for each in found) == sorted(offered)


@pytest.mark.parametrize(("words", "offered"), [*OFFERED, (["jobs", "--tower", ""], [])])
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
