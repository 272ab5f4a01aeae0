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
        pytest.skip("no Python >= 3.11 with venv in /usr/bin: `apt-get install python3-venv`")


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
    assert (tmp_path / program[1]).read_text().startswith("#!/opt/watchtower/bin/python")
    python = tmp_path / "opt/watchtower/bin/python"
    subprocess.run([python, "-P", "-m", "agent", "--version"], check=True, timeout=30, cwd="/")
    assert (tmp_path / "opt/watchtower/bin/py-spy").exists()

    make("uninstall-agent", f"DESTDIR={tmp_path}")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"etc/watchtower/agent.env"}


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
    said = make("-n", "install-tower")
    assert "./heartbeat '.[tower]'" in said
    assert "deploy/systemd/watchtower-tower.service" in said
    assert "deploy/systemd/tower.toml" in said


def test_the_prefix_is_where_the_units_start_their_programs():
    said = make("-n", "install-agent", "DESTDIR=/d", "PREFIX=/srv/wt")
    assert "s|/opt/watchtower/|/srv/wt/|" in said
    assert "/d/srv/wt" in said


def test_every_make_target_of_the_page_exists():
    known = set(re.findall(r"^  make (\S+)", make("help"), re.MULTILINE))
    named = {words[1] for words in commands() if words[0] == "make"}
    assert {"install-agent", "install-tower", "uninstall-agent"} <= named
    assert named <= known
