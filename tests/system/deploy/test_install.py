"""`make install-*` for real, into a folder."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.install_page import ROOT, commands

INSTALL_DEADLINE_S = 280.0


def make(*words: str, **environment: str) -> str:
    done = subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=INSTALL_DEADLINE_S,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def service_python() -> None:
    found = make("-f", "deploy/install.mk", "--eval=which: ; @echo $(SERVICE_PYTHON)", "which")
    if not found.strip():
        pytest.skip("no Python >= 3.10 with venv in /usr/bin: `apt-get install python3-venv`")


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("service_python")
def test_a_daemon_is_installed_runs_and_leaves_again(tmp_path: Path):
    settings = tmp_path / "etc/watchtower/agent.env"
    settings.parent.mkdir(parents=True)
    settings.write_text("WATCHTOWER_URL=http://mine:1\n")
    assert "systemctl enable --now watchtower-agent" in make("install-agent", f"DESTDIR={tmp_path}")
    assert settings.read_text() == "WATCHTOWER_URL=http://mine:1\n"
    assert (tmp_path / "etc/sysusers.d/watchtower-agent.conf").exists()
    text = (tmp_path / "etc/systemd/system/watchtower-agent.service").read_text()
    program = re.search(r"^ExecStart=/(\S+)", text, re.MULTILINE)
    assert program
    assert run(tmp_path / program[1], "--version").startswith("watchtower-agent ")
    tried = tmp_path / "agent.env"
    tried.write_text("WATCHTOWER_URL=http://127.0.0.1:9\nWATCHTOWER_AGENT_OPTIONS=--node n7\n")
    words = run(tmp_path / program[1], "doctor", "--env-file", str(tried), status=1)
    assert f"settings of the service, from {tried}" in words
    assert "FAIL  tower: http://127.0.0.1:9 accepts no reports" in words
    tried.unlink()
    # It also runs where it belongs, and if it is called by a link.
    (tmp_path / "link").symlink_to(tmp_path / program[1])
    assert run(tmp_path / "link", "--version").startswith("watchtower-agent ")
    (tmp_path / "link").unlink()
    (tmp_path / "opt").rename(tmp_path / "moved")
    moved = tmp_path / program[1].replace("opt/", "moved/", 1)
    assert run(moved, "--version").startswith("watchtower-agent ")
    (tmp_path / "moved").rename(tmp_path / "opt")
    assert (tmp_path / "opt/watchtower/bin/py-spy").exists()

    make("uninstall-agent", f"DESTDIR={tmp_path}")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"etc/watchtower/agent.env"}


def run(program: Path, *words: str, status: int = 0) -> str:
    """Run an installed program, away from the source folder."""
    done = subprocess.run(
        [program, *words], cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_the_environment_stays_while_the_other_daemon_uses_it(tmp_path: Path):
    (tmp_path / "opt/watchtower").mkdir(parents=True)
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    for unit in ("watchtower-agent", "watchtower-tower"):
        (units / f"{unit}.service").touch()
    make("uninstall-agent", f"DESTDIR={tmp_path}")
    assert (tmp_path / "opt/watchtower").exists()
    make("uninstall-tower", f"DESTDIR={tmp_path}")
    assert not (tmp_path / "opt/watchtower").exists()


def test_the_tower_is_installed_in_the_same_way_with_what_it_needs():
    text = make("-n", "install-tower")
    assert "./heartbeat '.[tower]'" in text
    assert "deploy/systemd/watchtower-tower.service" in text
    assert "deploy/systemd/tower.toml" in text


def test_the_prefix_is_where_the_units_start_their_programs():
    text = make("-n", "install-agent", "DESTDIR=/d", "PREFIX=/srv/wt")
    assert "s|/opt/watchtower/|/srv/wt/|" in text
    assert "/d/srv/wt" in text


def test_every_make_target_of_the_page_exists():
    known = set(re.findall(r"^  make (\S+)", make("help"), re.MULTILINE))
    named = {words[1] for words in commands() if words[0] == "make"}
    assert {"install-agent", "install-tower", "uninstall-agent"} <= named
    assert named <= known
