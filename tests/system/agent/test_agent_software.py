"""The versions of libraries that a process has mapped: by their names, and by their packages."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from pathlib import Path

from agent.children import ChildRunner
from agent.dumpers.dumper import Target
from agent.dumpers.python_stacks import PythonStacks, find_py_spy
from agent.dumps.round import make_taker
from agent.procfs import Proc
from tests.system.agent.agent_processes import Victim

MAPS = """
import mmap, time
opened = [open(path, "rb") for path in {paths!r}]
mapped = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in opened]
print("mapped", flush=True)
time.sleep(600)
"""


def write_file(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF".ljust(mmap.PAGESIZE, b"\0"))
    return str(path)


def dump(victim: Victim, folder: Path, *paths: str) -> dict[str, str]:
    program = folder / "main.py"
    program.write_text(MAPS.format(paths=paths))
    victim.begin(f"import runpy; runpy.run_path({str(program)!r})")
    victim.wait_for("mapped")
    proc, runner = Proc(), ChildRunner()
    stacks = PythonStacks(runner, find_py_spy())
    taker = make_taker(proc, runner, stacks, lambda _: None, read_source=False)
    stat = proc.stat(victim.pid)
    assert stat is not None
    target = Target(rank=0, pid=victim.pid, start_time=stat.start_time, read_page=lambda: None)
    for _ in range(2):  # the second round asks no child
        (taken,) = taker.take([target], deadline=time.monotonic() + 10).ranks
    return {each.name: each.version for each in taken.software}


def test_a_name_a_package_and_the_node_show_versions(
    start: Callable[..., Victim], tmp_path: Path
) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    nccl = write_file(packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    torch = write_file(packages / "torch" / "lib" / "libtorch_cpu.so")
    driver = write_file(tmp_path / "driver" / "libcuda.so.535.104.05")
    for name in ("nvidia_nccl_cu12-2.27.3", "torch-2.9.1+cu128", "nccl_tests-9.9"):
        (packages / f"{name}.dist-info").mkdir()
    found = dump(start(RANK="0", WORLD_SIZE="1"), tmp_path, nccl, torch, driver)
    assert found.pop("machine")
    assert found.pop("linux")
    assert found == {"cuda driver": "535.104.05", "nccl": "2.27.3", "torch": "2.9.1+cu128"}


def test_without_a_package_a_version_is_not_known(
    start: Callable[..., Victim], tmp_path: Path
) -> None:
    alone = write_file(tmp_path / "own" / "libnccl.so.2")
    found = dump(start(RANK="0", WORLD_SIZE="1"), tmp_path, alone)
    assert set(found) == {"machine", "linux"}
