"""What a snapshot may not read: the sentences, from a /proc that the test writes."""

from __future__ import annotations

import os
import pwd
import threading
from pathlib import Path

import pytest

from agent.procfs import Proc
from agent.snapshot import taking
from agent.snapshot.command import snapshot
from agent.snapshot.taking import (
    SnapshotOptions,
    Unread,
    find_limits,
    find_names,
    find_unread,
    write_closed,
    write_other_users,
)

NOBODY = 4_000_000_000
"""A number that no user has."""


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """A /proc with three processes of this user, who has no capabilities."""
    for pid, name in (
        (1, "systemd"),
        (7, "python3.11"),
        (8, "pt_main_thread"),
        (os.getpid(), "pytest"),
    ):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} ({name}) S 1 {'0 ' * 48}\n")
        (folder / "environ").touch()
        (folder / "status").write_text("CapEff:\t0\n")
    return Proc(str(tmp_path))


def yama(proc: Proc, scope: int) -> None:
    folder = Path(proc.path) / "sys/kernel/yama"
    folder.mkdir(parents=True)
    (folder / "ptrace_scope").write_text(f"{scope}\n")


def test_only_other_users_with_python_are_named(proc: Proc) -> None:
    assert find_unread(proc, NOBODY) == Unread(users=(os.getuid(),), closed=())
    assert find_unread(proc, os.getuid()) == Unread(users=(), closed=())


def test_names_of_users_are_awaited_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    root, never = pwd.getpwuid(0), threading.Event()

    def ask(number: int) -> pwd.struct_passwd:
        if number:
            never.wait()  # as a directory service that does not answer
        return root

    monkeypatch.setattr(pwd, "getpwuid", ask)
    monkeypatch.setattr(taking, "NAMES_DEADLINE_S", 0.05)
    assert find_names([0, 7, 0]) == {0: "root"}
    never.set()


def test_a_process_that_has_ended_is_not_unread(proc: Proc) -> None:
    for pid in (7, 8):
        stat = Path(proc.file(pid, "stat"))
        stat.write_text(stat.read_text().replace(" S ", " Z "))
    assert find_unread(proc, NOBODY) == Unread(users=(), closed=())


@pytest.mark.parametrize(
    ("users", "seen"),
    [
        ((), "are not found: run"),
        ((NOBODY,), f"(uid {NOBODY} runs Python here)"),
        ((NOBODY, NOBODY + 1), f"(uid {NOBODY} and uid {NOBODY + 1} run Python here)"),
        (tuple(range(NOBODY, NOBODY + 9)), f"uid {NOBODY + 3} and 5 more users run Python here"),
    ],
)
def test_the_sentence_says_who_must_take_the_snapshot(users: tuple[int, ...], seen: str) -> None:
    sentence = write_other_users(Unread(users=users, closed=()), NOBODY + 99, "sudo")
    assert sentence.startswith(f"ranks of other users than uid {NOBODY + 99} are not found")
    assert seen in sentence
    assert sentence.endswith("as the user of the job, or with sudo")


@pytest.mark.parametrize(
    ("closed", "words"), [((7,), "1 Python process of"), ((7, 8), "2 Python processes of")]
)
def test_a_process_that_only_root_may_trace_is_named(closed: tuple[int, ...], words: str) -> None:
    sentence = write_closed(Unread(users=(), closed=closed), "sudo")
    assert sentence.startswith(words)
    assert "such as pid 7" in sentence
    assert write_closed(Unread(users=(), closed=()), "sudo") == ""


def test_a_user_is_sent_to_sudo_and_root_to_capabilities(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    yama(proc, 1)
    for user, needed, trace in (
        (NOBODY, "sudo", "run the snapshot with sudo"),
        (0, "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH", "give it CAP_SYS_PTRACE"),
    ):
        monkeypatch.setattr(os, "getuid", lambda user=user: user)
        found = find_limits(proc, "/bin/py-spy")
        assert f"or with {needed}" in found.process
        assert trace in found.python_stacks
        assert "WATCHTOWER_PTRACE=any" in found.python_stacks


def test_without_a_rank_the_match_and_the_limits_are_named(
    proc: Proc, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(Path(proc.path).parent)
    options = SnapshotOptions(node="n0", root=root, match=(("SLURM_JOB_ID", "1\x1b2"),))
    assert snapshot(options) == 1
    text = capsys.readouterr().err
    assert "no rank was found on this node with SLURM_JOB_ID=1" in text
    assert "ranks of other users than" in text
    assert "\x1b" not in text
