"""`watchtower-agent check` on this machine, as a process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agent.delivery.spool import Spool
from agent.dumpers.python_stacks import find_py_spy
from agent.gaps import find_gaps
from agent.procfs import Proc
from tests.agent.agent_scene import RecordingTower
from tests.certificates import make_authority
from tests.system.agent.agent_processes import clean_environment
from tests.towers import running_tower
from watchtower.service.interpreter import module_command


def check(*options: str) -> tuple[int, dict[str, str]]:
    """Run it; return the exit code and what it says by subject."""
    done = subprocess.run(
        module_command("agent", "check", *options),
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    lines = [line.partition(": ") for line in done.stdout.splitlines()]
    return done.returncode, {what: text for what, _, text in lines}


def test_where_nothing_is_limited_it_succeeds(tower: RecordingTower, tmp_path: Path) -> None:
    if find_gaps(Proc(), find_py_spy()).sentences():
        pytest.skip("this user or machine is limited: run it as root with py-spy")
    code, found = check("--tower", tower.url, "--spool-dir", str(tmp_path))
    assert code == 0, found
    assert found["ok  tower"] == f"{tower.url} accepts reports without a token"
    assert found["ok  spool"] == f"{tmp_path}/dumps can be made in {tmp_path}"
    assert list(tmp_path.iterdir()) == []
    assert "py-spy 0." in found["ok  Python stacks"]
    assert set(found) >= {"ok  ranks", "ok  processes", "ok  Yama"}
    assert tower.reports == []  # it does not pretend to be an agent


def test_a_tower_that_is_away_and_a_folder_that_cannot_be_used_are_said(tmp_path: Path) -> None:
    gone = RecordingTower()
    gone.close()
    (tmp_path / "dumps").write_text("a file")
    code, found = check("--tower", gone.url, "--spool-dir", str(tmp_path))
    assert code == 1
    assert "Connection refused" in found["!!  tower"]
    assert "cannot be used" in found["!!  spool"]


def test_a_spool_that_an_agent_uses_is_no_fault(tower: RecordingTower, tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), lambda _: None, lambda _: False)
    spool.open()
    _, found = check("--tower", tower.url, "--spool-dir", str(tmp_path))
    spool.close()
    assert "is used by an agent that runs now" in found["ok  spool"]
    _, found = check("--tower", tower.url, "--spool-dir", str(tmp_path))
    assert found["ok  spool"] == f"{tmp_path}/dumps, 0 dumps wait in it"
    _, found = check("--tower", tower.url)
    assert "none (--spool-dir)" in found["ok  spool"]


@pytest.mark.parametrize("answer", [b"", b"[]", b"null", b'{"detail": "hello"}', b"\xff<html>"])
def test_what_is_no_tower_takes_no_reports(tower: RecordingTower, answer: bytes) -> None:
    tower.get_answer = answer
    code, found = check("--tower", tower.url)
    assert code == 1
    assert found["!!  tower"] == f"{tower.url} does not answer like a watchtower tower"


def test_another_release_is_said(tower: RecordingTower) -> None:
    tower.get_answer = b'{"version": 7}'
    assert "speaks version 7, this agent 1" in check("--tower", tower.url)[1]["!!  tower"]


def test_certificate_token_and_scope_are_those_of_a_run(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    cert, key = authority.sign("tower")
    tokens = {scope: f"{scope}-token-of-the-tests" for scope in ("agent", "reader")}
    for scope, token in tokens.items():
        (tmp_path / scope).write_text(token)
        (tmp_path / scope).chmod(0o600)
    environment = {f"WATCHTOWER_{scope.upper()}_TOKEN": text for scope, text in tokens.items()}
    words = ("--tls-cert", cert, "--tls-key", key)
    with running_tower(tmp_path / "tower", *words, environment=environment) as tower:
        where = ("--tower", tower.url)
        trusting = (*where, "--ca-file", str(authority.file))
        agents, readers = (("--token-file", str(tmp_path / scope)) for scope in tokens)
        assert "an authority that is not trusted here" in check(*where, *agents)[1]["!!  tower"]
        assert "HTTP 401" in check(*trusting)[1]["!!  tower"]
        code, found = check(*trusting, *readers)
        assert code == 1
        assert found["!!  tower"] == (
            f"{tower.url} accepts no reports: HTTP 403 this call needs a token for agent, "
            "but the token is for reader"
        )
        found = check(*trusting, *agents)[1]
        assert found["ok  tower"] == f"{tower.url} accepts reports with this token"


def test_a_py_spy_that_gives_nothing_is_said_although_it_has_a_version(
    tower: RecordingTower, tmp_path: Path
) -> None:
    if find_gaps(Proc(), find_py_spy()).python_stacks:
        pytest.skip("py-spy is limited here anyhow: run it as root")
    broken = tmp_path / "py-spy"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] && echo py-spy 0.0 || exit 1\n")
    broken.chmod(0o755)
    code, found = check("--tower", tower.url, "--py-spy", str(broken))
    assert code == 1
    assert found["!!  Python stacks"] == (
        f"{broken}, py-spy 0.0, gives none of this process: py-spy ended with code 1"
    )
