"""The packages in a clean root: installed, used, upgraded, removed and purged.

`make test-packages` runs it, because a root and packages take minutes to make.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.packages.build import build_rpm
from tests.system.deploy.clean_root import DEADLINE_S, CleanRoot, run

ROOT = Path(__file__).parents[3]
ANSIBLE = Path(sys.executable).with_name("ansible-playbook")
NAMES = ("watchtower", "watchtower-agent", "watchtower-tower")

pytestmark = [
    pytest.mark.packages,
    pytest.mark.timeout(DEADLINE_S),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a root"),
    pytest.mark.skipif(not shutil.which("mmdebstrap"), reason="apt install mmdebstrap"),
]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CleanRoot]:
    folder = tmp_path_factory.mktemp("root")
    folder.chmod(0o755)
    yield CleanRoot(folder / "debian")
    shutil.rmtree(folder, ignore_errors=True)


def make_newer(package: Path, folder: Path, settings: str = "") -> Path:
    """The same package as another version, with other default settings."""
    tree = folder / package.stem
    run("dpkg-deb", "--raw-extract", package, tree)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace("0.1.0", "0.1.1"))
    if settings:
        (tree / settings).write_text((tree / settings).read_text() + "# new default\n")
    newer = folder / package.name.replace("0.1.0", "0.1.1")
    run("dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "--build", tree, newer)
    return newer


def test_the_scripts_of_the_packages_are_sound() -> None:
    for script in (ROOT / "deploy/packages").glob("[dr]*/*"):
        run("sh", "-n", script)
        if shutil.which("shellcheck"):
            run("shellcheck", script)


@pytest.mark.skipif(not ANSIBLE.exists(), reason="pip install ansible-core")
def test_ansible_understands_the_role_that_installs_them() -> None:
    run(ANSIBLE, "-i", "localhost,", "--syntax-check", ROOT / "deploy/ansible/site.yml")


def test_they_are_installed_name_a_rank_are_upgraded_and_leave_nothing_but_data(
    packages: Path, clean: CleanRoot, tmp_path: Path
) -> None:
    before = clean.list_files()
    files = [next(packages.glob(f"{name}_*.deb")) for name in NAMES]
    clean.install(*files)
    assert clean.run("watchtower", "--version").startswith("watchtower ")
    assert "watchtower-agent:x:" in (clean.folder / "etc/passwd").read_text()
    wanted = clean.folder / "etc/systemd/system/multi-user.target.wants"
    assert {path.name for path in wanted.iterdir()} >= {
        "watchtower-agent.service",
        "watchtower-tower.service",
    }
    assert "watchtower why" in (clean.folder / "usr/share/man/man1/watchtower.1").read_text()
    run("bash", "-n", clean.folder / "usr/share/bash-completion/completions/watchtower")
    drill = clean.run("watchtower", "drill", "dataloader_sleep", "--backend", "stdlib")
    assert "hung: dataloader_stall, rank " in drill, drill

    settings = clean.folder / "etc/watchtower/agent.env"
    settings.write_text("WATCHTOWER_URL=http://mine:1\n")
    data = clean.folder / "var/lib/watchtower/watchtower.db"
    data.parent.mkdir()
    data.touch()
    newer = [make_newer(package, tmp_path) for package in (files[0], files[2])]
    newer.append(make_newer(files[1], tmp_path, "etc/watchtower/agent.env"))
    clean.install(*newer)
    assert settings.read_text() == "WATCHTOWER_URL=http://mine:1\n"
    listed = clean.run("dpkg-query", "--show", "--showformat=${Version} ", *NAMES)
    assert listed.split() == ["0.1.1"] * 3

    clean.run("dpkg", "--remove", *reversed(NAMES))
    assert settings.exists()
    clean.run("dpkg", "--purge", *reversed(NAMES))
    # What else is new in /etc are copies of the lists of users.
    left = {name for name in clean.list_files() - before if "watchtower" in name}
    assert left == {"var/lib/watchtower/watchtower.db"}
    assert not (clean.folder / "opt/watchtower").exists()


@pytest.mark.skipif(not shutil.which("rpmbuild"), reason="apt install rpm")
def test_the_rpm_files_have_the_same_files_keep_settings_and_leave_nothing_but_data(
    packages: Path, clean: CleanRoot, tmp_path: Path
) -> None:
    """In the same root: it has no packages of RPM, so that dependencies are not checked."""

    def rpm(*words: str | Path) -> str:
        return run("rpm", "--root", clean.folder, *words)

    files = [next(packages.glob(f"{name}-0*.rpm")) for name in NAMES]
    for package, name in zip(files, NAMES, strict=True):
        debian = run("dpkg-deb", "--contents", next(packages.glob(f"{name}_*.deb")))
        wanted = {line.split()[5][1:] for line in debian.splitlines() if not line.startswith("d")}
        listed = set(rpm("-qp", "--list", package).splitlines())
        assert {name.replace("vendor-completions", "site-functions") for name in wanted} <= listed
    python, *others = (set(rpm("-qp", "--requires", each).splitlines()) for each in files)
    assert any(each.startswith("/usr/bin/python3.") for each in python)
    assert all(each >= {"systemd", "watchtower = 0.1.0"} for each in others)

    before = clean.list_files()
    rpm("--nodeps", "--install", *files)
    assert clean.run("watchtower", "--version").startswith("watchtower ")
    assert "watchtower-agent:x:" in (clean.folder / "etc/passwd").read_text()
    wants = clean.folder / "etc/systemd/system/multi-user.target.wants"
    assert (wants / "watchtower-agent.service").is_symlink()
    settings = clean.folder / "etc/watchtower/agent.env"
    tree = tmp_path / "tree"
    shutil.copytree(clean.folder / "etc/watchtower", tree / "etc/watchtower")
    (tree / "etc/watchtower/tower.toml").unlink()
    with (tree / "etc/watchtower/agent.env").open("a") as file:
        file.write("# new default\n")
    settings.write_text("WATCHTOWER_URL=http://mine:1\n")
    build_rpm("watchtower-agent", tree, "0.1.1", tmp_path)
    rpm("--nodeps", "--upgrade", next(tmp_path.glob("*.rpm")))
    assert settings.read_text() == "WATCHTOWER_URL=http://mine:1\n"
    assert "# new default" in settings.with_suffix(".env.rpmnew").read_text()
    settings.with_suffix(".env.rpmnew").unlink()
    rpm("--nodeps", "--erase", *NAMES)
    left = {name for name in clean.list_files() - before if "watchtower" in name}
    assert left == {"etc/watchtower/agent.env.rpmsave"}
    assert not (clean.folder / "opt/watchtower").exists()
