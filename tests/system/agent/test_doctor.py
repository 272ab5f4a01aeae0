"""`watchtower-agent doctor` on this machine, as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.delivery.spool import Spool
from agent.dumpers.python_stacks import find_py_spy
from agent.gaps import find_gaps
from agent.procfs import Proc
from tests.agent.agent_scene import RecordingTower
from tests.certificates import make_authority
from tests.system.agent.agent_processes import clean_environment
from tests.system.agent.fake_gpus import WORKS, Gpus
from tests.towers import running_tower
from watchtower.drills import fixtures
from watchtower.drills.compiling import find_compiler
from watchtower.service.interpreter import module_command


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it."""
    return subprocess.run(
        module_command("agent", "doctor", *options),
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def check(*options: str) -> tuple[int, dict[str, str]]:
    """Check what the agent can do; return the exit code, and what it found by subject."""
    done = run("--about", "agent", *options)
    assert done.stderr == ""
    lines = [line.partition(": ") for line in done.stdout.splitlines()]
    return done.returncode, {what: text for what, _, text in lines}


def examine(
    root: Path, *options: str, **environment: str
) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """Check a node below a root; return the exit code, and states and texts by check."""
    words = ("--about", "node", "--output", "json", "--root", str(root))
    done = run(*words, *options, **environment)
    assert done.stderr == ""
    found: dict[str, list[tuple[str, str]]] = {}
    for each in json.loads(done.stdout)["results"]:
        found.setdefault(each["check"], []).append((each["state"], each["text"]))
    return done.returncode, found


def test_where_nothing_is_limited_it_succeeds(tower: RecordingTower, tmp_path: Path) -> None:
    if find_gaps(Proc(), find_py_spy()).sentences():
        pytest.skip("this user or machine is limited: run it as root with py-spy")
    code, found = check("--tower", tower.url, "--spool-dir", str(tmp_path))
    assert code == 0, found
    assert found["OK    tower"] == f"{tower.url} accepts reports without a token"
    assert found["OK    spool"] == f"{tmp_path}/dumps can be made in {tmp_path}"
    assert list(tmp_path.iterdir()) == []
    assert "py-spy 0." in found["OK    Python stacks"]
    assert set(found) >= {"OK    ranks", "OK    processes", "OK    native places"}
    assert tower.reports == []  # it does not pretend to be an agent


def test_a_tower_that_is_away_and_a_folder_that_cannot_be_used_are_said(tmp_path: Path) -> None:
    gone = RecordingTower()
    gone.close()
    (tmp_path / "dumps").write_text("a file")
    code, found = check("--tower", gone.url, "--spool-dir", str(tmp_path))
    assert code == 1
    assert "Connection refused" in found["FAIL  tower"]
    assert "cannot be used" in found["FAIL  spool"]


def test_a_spool_that_an_agent_uses_is_no_fault(tower: RecordingTower, tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), lambda _: None, lambda _: False)
    spool.open()
    _, found = check("--tower", tower.url, "--spool-dir", str(tmp_path))
    spool.close()
    assert "is used by an agent that runs now" in found["OK    spool"]
    _, found = check("--tower", tower.url, "--spool-dir", str(tmp_path))
    assert found["OK    spool"] == f"{tmp_path}/dumps, 0 dumps wait in it"
    _, found = check("--tower", tower.url)
    assert "none (--spool-dir)" in found["OK    spool"]


@pytest.mark.parametrize("answer", [b"", b"[]", b"null", b'{"detail": "hello"}', b"\xff<html>"])
def test_what_is_no_tower_takes_no_reports(tower: RecordingTower, answer: bytes) -> None:
    tower.get_answer = answer
    code, found = check("--tower", tower.url)
    assert code == 1
    assert found["FAIL  tower"] == f"{tower.url} does not answer like a watchtower tower"


def test_another_release_is_said(tower: RecordingTower) -> None:
    tower.get_answer = b'{"version": 7}'
    assert "speaks version 7, this agent 1" in check("--tower", tower.url)[1]["FAIL  tower"]


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
        assert "an authority that is not trusted here" in check(*where, *agents)[1]["FAIL  tower"]
        assert "HTTP 401" in check(*trusting)[1]["FAIL  tower"]
        code, found = check(*trusting, *readers)
        assert code == 1
        assert found["FAIL  tower"] == (
            f"{tower.url} accepts no reports: HTTP 403 this call needs a token for agent, "
            "but the token is for reader"
        )
        found = check(*trusting, *agents)[1]
        assert found["OK    tower"] == f"{tower.url} accepts reports with this token"


def test_a_py_spy_that_gives_nothing_is_said_although_it_has_a_version(
    tower: RecordingTower, tmp_path: Path
) -> None:
    if find_gaps(Proc(), find_py_spy()).python_stacks:
        pytest.skip("py-spy is limited here anyhow: run it as root")
    broken = tmp_path / "py-spy"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] && echo py-spy 0.0 || exit 1\n")
    broken.chmod(0o755)
    where = ("--tower", tower.url, "--py-spy", str(broken))
    code, found = check(*where)
    assert code == 0  # a job can run
    assert check(*where, "--strict")[0] == 1
    assert found["WARN  Python stacks"] == (
        f"{broken}, py-spy 0.0, gives none of this process: py-spy ended with code 1"
    )


def test_single_checks_are_run_by_their_names() -> None:
    done = run("--about", "node", "--check", "Clock", "--check", "limits", "--output", "json")
    found = json.loads(done.stdout)
    assert [each["check"] for each in found["results"]] == ["limits", "clock"]
    assert found["tests"] == []
    unknown = run("--about", "node", "--check", "spoon")
    assert unknown.returncode == 2
    assert "no check is called 'spoon': GPUs, " in unknown.stderr


OF_THIS_MACHINE = {"limits", "clock", "mounts"}
"""Checks that read the machine of the test, whatever the root."""

HEALTHY_GPUS = "".join(WORKS.format(gpu) + f"links {gpu} 18\n" for gpu in (0, 1))
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


def make_node(root: Path) -> None:
    """Add what a node with NVSwitches and two ports has: the fabric manager, and files of ports."""
    (root / "proc").unlink()
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/driver/nvidia-nvswitch/devices/0000:c2:00.0").mkdir(parents=True)
    unit = root / "sys/fs/cgroup/system.slice/nvidia-fabricmanager.service"
    unit.mkdir(parents=True)
    (unit / "cgroup.procs").write_text("812\n")
    (root / "proc/uptime").write_text("90000.00 1.0\n")
    (root / "dev/shm").symlink_to("/dev/shm")
    for card in ("mlx5_0", "mlx5_1"):
        port = root / f"sys/class/infiniband/{card}/ports/1"
        (port / "counters").mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
        (port / "counters/symbol_error").write_text("7\n")


@needs_compiler
def test_a_healthy_node_of_gpus_and_ports_is_ok_and_the_tests_to_run_are_listed(gpus: Gpus) -> None:
    make_node(gpus.root)
    gpus.be(HEALTHY_GPUS)
    _, found = examine(gpus.root, LD_LIBRARY_PATH=str(gpus.folder))
    bad = {name for name, each in found.items() if any(state != "ok" for state, _ in each)}
    assert bad <= OF_THIS_MACHINE, found
    assert found["GPUs"] == [("ok", "2 x Stand-in 3000, driver 999.1")]
    assert found["NVLink"] == [("ok", "18 up on each of 2 GPUs")]
    assert found["fabric manager"] == [("ok", "the fabric manager runs")]
    assert found["InfiniBand and RoCE"] == [("ok", "2 ports active, 400 Gbit/s")]
    words = ("--about", "node", "--root", str(gpus.root))
    text = run(*words, LD_LIBRARY_PATH=str(gpus.folder)).stdout
    assert "  all_reduce_perf -b 1G -e 8G -f 2 -g 2\n" in text
    assert "ib_write_bw -d mlx5_1" in text
    assert "expect: at least 368 Gbit/s" in text


@needs_compiler
def test_each_broken_part_of_a_node_fails_with_its_fix(gpus: Gpus) -> None:
    make_node(gpus.root)
    (gpus.root / "sys/fs/cgroup/system.slice/nvidia-fabricmanager.service/cgroup.procs").unlink()
    (gpus.root / "sys/class/infiniband/mlx5_1/ports/1/state").write_text("2: INIT\n")
    gpus.be(HEALTHY_GPUS + "links_up 1 16\nremap_failed 0 1\nfabric 0 0\nwidth 1 8\n")
    code, found = examine(gpus.root, LD_LIBRARY_PATH=str(gpus.folder))
    assert code == 1
    states = {name: {state for state, _ in each} for name, each in found.items()}
    for name in ("GPUs", "fabric manager", "NVLink", "InfiniBand and RoCE"):
        assert "fail" in states[name], found
    assert states["PCIe"] == {"warn"}
    line = run(
        "--about",
        "node",
        "--output",
        "line",
        "--root",
        str(gpus.root),
        LD_LIBRARY_PATH=str(gpus.folder),
    )
    assert line.returncode == 1
    assert line.stdout.startswith("FAIL GPUs: GPU 0000:3a:00: it could not replace a row")
    assert line.stdout.count("\n") == 1


@needs_compiler
def test_a_driver_that_does_not_answer_is_a_result_in_five_seconds(gpus: Gpus) -> None:
    make_node(gpus.root)
    gpus.be("hang.init 0 1\n")
    begun_at = time.monotonic()
    code, found = examine(gpus.root, LD_LIBRARY_PATH=str(gpus.folder))
    assert time.monotonic() - begun_at < 15  # 5 s on a machine with free processors
    assert code == 1
    assert [state for state, _ in found["GPUs"]][:1] == ["fail"]
    assert found["shared memory"][0][0] == "ok"


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounting needs root and /dev/fuse"
)
def test_a_file_system_that_hangs_is_named_and_holds_nothing_up(tmp_path: Path) -> None:
    fixture = Path(fixtures.__file__).with_name("fuse_mount.py")
    mount = subprocess.Popen(
        [sys.executable, "-I", str(fixture), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert mount.stdout is not None
    try:
        if not mount.stdout.readline().startswith("ready"):
            pytest.skip("this machine does not allow a mount")
        code, found = examine(Path("/"))
    finally:
        mount.terminate()
        mount.wait(30)
        mount.stdout.close()
    assert code == 1
    assert ("fail", f"{tmp_path}/shared-storage (fuse) did not answer in 3 s") in found["mounts"]
    assert found["shared memory"][0][0] == "ok"
    code, found = examine(Path("/"))
    assert [state for state, _ in found["mounts"]] == ["ok"]
