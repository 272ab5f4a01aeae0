"""Builds the packages for the system's own Python. `make packages` runs it.

/usr/bin/python3 deploy/packages/build.py WHEELS TARGET

WHEELS has the wheels of `make dist`. Writes .deb with `dpkg-deb`, .rpm with `rpmbuild`, whichever
is here. `watchtower` brings the environment in /opt/watchtower with
the commands; `watchtower-tower` and `watchtower-agent` add a service each.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "deploy/systemd"
SCRIPTS = ROOT / "deploy/packages"
PREFIX = "opt/watchtower"
PROGRAMS = ("watchtower", "watchtower-agent")
ZSH_OF_DEBIAN = "usr/share/zsh/vendor-completions/"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/{}",
    "zsh": f"{ZSH_OF_DEBIAN}_{{}}",
    "fish": "usr/share/fish/vendor_completions.d/{}.fish",
}
SETTINGS = {"tower": "tower.toml", "agent": "agent.env"}
SUMMARIES = {
    "watchtower": "names the rank that hung a distributed training job (commands)",
    "watchtower-tower": "names the rank that hung a distributed training job (tower)",
    "watchtower-agent": "names the rank that hung a distributed training job (agent of a node)",
}
MAINTAINER = "watchtower maintainers <maintainers@watchtower.example>"


def main(wheels: Path, target: Path) -> None:
    """Write the packages."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="packages-") as text:
        trees = {name: Path(text) / name for name in SUMMARIES}
        os.umask(0o022)
        version = fill_commands(trees["watchtower"], wheels)
        for daemon in SETTINGS:
            fill_service(trees[f"watchtower-{daemon}"], daemon)
        for name, tree in trees.items():
            for path in tree.rglob("*"):
                os.utime(path, (epoch(), epoch()), follow_symlinks=False)
            if shutil.which("dpkg-deb"):
                build_deb(name, tree, version, target)
            if shutil.which("rpmbuild"):
                build_rpm(name, tree, version, target)


def epoch() -> int:
    """Return the time of every file."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def fill_commands(tree: Path, wheels: Path) -> str:
    """Make the environment, the links to it, pages of the manual and completions; return the
    version.
    """
    environment = tree / PREFIX
    # By its whole name: elsewhere /usr/bin/python3 may be another version.
    run(Path(sys.executable).resolve(), "-m", "venv", "--without-pip", environment)
    python = environment / "bin/python"
    (wheel,) = wheels.glob("gpu_watchtower-*.whl")
    install = [*pip(), "--python", python, "install", "--quiet", "--no-compile"]
    run(
        *(*install, "--disable-pip-version-check", "-c", ROOT / "constraints.txt"),
        *("--find-links", wheels, f"gpu-watchtower[tower,agent,drills] @ file://{wheel.resolve()}"),
    )
    version = wheel.name.split("-")[1]
    for path in environment.glob("bin/[Aa]ctivate*"):
        path.unlink()
    for place in environment.rglob("direct_url.json"):  # where it was built
        place.unlink()
    config = environment / "pyvenv.cfg"
    kept = [line for line in config.read_text().splitlines() if not line.startswith("command")]
    config.write_text("\n".join([*kept, ""]))
    scripts = [path for path in (environment / "bin").iterdir() if is_script(path)]
    for script in scripts:
        text = script.read_text().replace(str(environment), f"/{PREFIX}")
        script.write_text(text)
    # Services may not write beside the packages, and an uninstallation must leave nothing.
    compileall.compile_dir(
        environment / "lib",
        quiet=1,
        stripdir=str(tree),
        prependdir="/",
        invalidation_mode=compileall.py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    (tree / "usr/bin").mkdir(parents=True)
    for program in PROGRAMS:
        (tree / "usr/bin" / program).symlink_to(f"/{PREFIX}/bin/{program}")
        describe(tree, program, [str(python), str(environment / "bin" / program)])
    documents = tree / "usr/share/doc/watchtower"
    documents.mkdir(parents=True)
    shutil.copyfile(ROOT / "LICENSE", documents / "copyright")
    return version


def pip() -> list[str | Path]:
    """Return the pip that installs for other Pythons: that of the development environment."""
    return [ROOT / ".venv/bin/python", "-m", "pip"]


def is_script(path: Path) -> bool:
    """Return whether a program is a script of this environment."""
    return path.is_file() and not path.is_symlink() and path.read_bytes()[:2] == b"#!"


def describe(tree: Path, program: str, command: list[str]) -> None:
    """Write the page of the manual and the completions of one program."""
    for shell, pattern in COMPLETIONS.items():
        file = tree / pattern.format(program)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(run(*command, "completion", shell))
    module = {
        "watchtower": "watchtower.cli:make_parser",
        "watchtower-agent": "agent.cli:build_parser",
    }
    name, function = module[program].split(":")
    page = tree / f"usr/share/man/man1/{program}.1"
    page.parent.mkdir(parents=True, exist_ok=True)
    tool = [ROOT / ".venv/bin/argparse-manpage", "--module", name, "--function", function]
    about = ["--project-name", "watchtower", "--prog", program, "--manual-section", "1"]
    run(*tool, *about, "--manual-title", "watchtower", "--output", page)


def fill_service(tree: Path, daemon: str) -> None:
    """Place a unit, its settings and its user."""
    copies = {
        f"watchtower-{daemon}.service": f"usr/lib/systemd/system/watchtower-{daemon}.service",
        SETTINGS[daemon]: f"etc/watchtower/{SETTINGS[daemon]}",
        f"watchtower-{daemon}.sysusers": f"usr/lib/sysusers.d/watchtower-{daemon}.conf",
    }
    for source, place in copies.items():
        if (SYSTEMD / source).exists():
            (tree / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(SYSTEMD / source, tree / place)


def build_deb(name: str, tree: Path, version: str, target: Path) -> None:
    """Write one .deb."""
    machine = run("dpkg", "--print-architecture").strip()
    major, minor = sys.version_info[:2]
    depends = {
        "watchtower": f"python3 (>= {major}.{minor}~), python3 (<< {major}.{minor + 1}~)",
        "watchtower-tower": f"watchtower (= {version}), systemd",
        "watchtower-agent": f"watchtower (= {version}), systemd",
    }
    size = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
    control = tree / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: {machine}\n"
        f"Maintainer: {MAINTAINER}\nInstalled-Size: {size}\nSection: admin\nPriority: optional\n"
        f"Depends: {depends[name]}\nHomepage: https://watchtower.example\n"
        f"Description: {SUMMARIES[name]}\n"
    )
    settings = [f"/{path.relative_to(tree)}\n" for path in tree.glob("etc/**/*") if path.is_file()]
    if settings:
        (control / "conffiles").write_text("".join(settings))
        for script in ("postinst", "prerm", "postrm"):
            (control / script).write_text(script_of("debian", script, name), "utf-8")
            (control / script).chmod(0o755)
    file = target / f"{name}_{version}_{machine}.deb"
    run("dpkg-deb", "-Zzstd", "--root-owner-group", "--build", tree, file)
    shutil.rmtree(control)


def build_rpm(name: str, tree: Path, version: str, target: Path) -> None:
    """Write one .rpm."""
    python = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    requires = {"watchtower": python}.get(name, f"watchtower = {version}, systemd")
    entries = [f"/{PREFIX}"] if (tree / PREFIX).exists() else ["%dir /etc/watchtower"]
    moves = []
    for path in sorted(tree.rglob("*")):
        place = str(path.relative_to(tree))
        if path.is_dir() or place.startswith(f"{PREFIX}/"):
            continue
        mark = "%config(noreplace) " if place.startswith("etc/") else ""
        if place.startswith(ZSH_OF_DEBIAN):
            moved = place.replace(ZSH_OF_DEBIAN, "usr/share/zsh/site-functions/")
            moves.append(f"install -D -m 644 {tree}/{place} %{{buildroot}}/{moved}")
            moves.append(f"rm %{{buildroot}}/{place}")
            place = moved
        entries.append(f"{mark}/{place}")
    scripts = ("post", "preun", "postun") if name != "watchtower" else ()
    spec = "\n".join(
        [
            f"Name: {name}\nVersion: {version}\nRelease: 1\nSummary: {SUMMARIES[name]}",
            f"License: Apache-2.0\nURL: https://watchtower.example\nRequires: {requires}",
            # The environment brings its libraries; nothing is stripped or compiled again.
            "AutoReqProv: no\n%global __os_install_post %{nil}\n%global debug_package %{nil}",
            "%global _build_id_links none\n%global _binary_payload w3.zstdio",
            "%global use_source_date_epoch_as_buildtime 1\n%global _buildhost localhost",
            f"%description\n{SUMMARIES[name]}\n%install\ncp -a {tree}/. %{{buildroot}}",
            *moves,
            *(f"%{script}\n{script_of('rpm', script, name)}" for script in scripts),
            "%files\n%defattr(-,root,root)",
            *entries,
        ]
    )
    with tempfile.TemporaryDirectory(prefix="rpmbuild-") as top:
        file = Path(top) / f"{name}.spec"
        file.write_text(f"{spec}\n", "utf-8")
        run("rpmbuild", "-bb", "--define", f"_topdir {top}", file)
        for package in Path(top).glob("RPMS/*/*.rpm"):
            shutil.copy(package, target)


def script_of(kind: str, script: str, name: str) -> str:
    """Return a script of a package with the name of its unit."""
    return (SCRIPTS / kind / script).read_text("utf-8").replace("@UNIT@", f"{name}.service")


def run(*words: str | Path) -> str:
    """Run a program; ends this one with its output if it fails."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{words[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
