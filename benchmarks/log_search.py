"""Measures how fast `watchtower diagnose` reads the logs of a large job, and its memory.

Each rank has a log of steps, progress bars and lines of NCCL; one rank is silent at its end. The
files are read by one process, and by as many as there are CPUs.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from watchtower.commands.evidence_files import find_files, read_files
from watchtower.readers.findings import FileFound

LIMIT_S = 30.0
"""512 logs of 10 MB on two idle cores."""

WATCHDOG = (
    "[rank{rank}]:[E626 06:24:44.903881910 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=1000, "
    "NumelOut=1000, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
)
STEPS = 1200


def main() -> int:
    """Write the logs, and read them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--megabytes", type=float, default=10.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="log-search-") as folder:
        for rank in range(args.ranks):
            _write(Path(folder) / f"rank{rank}.log", rank, args)
        paths = list(find_files([Path(folder)]))
        total = sum(path.stat().st_size for path in paths)
        began, used = time.monotonic(), time.process_time()
        found = [each for path in paths for each in read_files([path])]
        _show("one process", total, time.monotonic() - began)
        print(f"  {time.process_time() - used:.1f} s CPU; {_silent(found)} silent")
        began = time.monotonic()
        command = [sys.executable, "-m", "watchtower", "diagnose", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        wall = time.monotonic() - began
        _show(f"the command, {os.cpu_count()} CPUs", total, wall)
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
        print(f"  its largest process had {memory} MB; limit {LIMIT_S:g} s for 512 logs of 10 MB")
        print(done.stdout.splitlines()[0])
    return 0 if f"rank {args.ranks // 2} " in done.stdout else 1


def _write(path: Path, rank: int, args: argparse.Namespace) -> None:
    numbers = random.Random(rank)
    lines = []
    for step in range(STEPS):
        lines.append(
            f"[rank{rank}]: 2026-06-26 06:{step % 60:02}:11,{step % 1000:03} INFO step {step} "
            f"loss {numbers.random():.4f} tokens/s {numbers.randint(1000, 9000)} mfu 41\n"
        )
        if step % 7 == 0:
            lines.append(f"  41%|####      | {step}/1970 [00:12<01:22,  9.98it/s]\r")
        if step % 50 == 0:
            lines.append("gpu-0:71:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n")
    part = "".join(lines).encode()
    with path.open("wb") as file:
        for _ in range(max(1, int(args.megabytes * 1e6 / len(part)))):
            file.write(part)
        if rank != args.ranks // 2:
            file.write(WATCHDOG.format(rank=rank).encode())


def _silent(found: list[FileFound]) -> int:
    return sum(not file.findings for file in found)


def _show(what: str, total: int, wall: float) -> None:
    print(f"{what}: {total / 1e6:.0f} MB in {wall:.1f} s, {total / 1e6 / wall:.0f} MB/s")


if __name__ == "__main__":
    sys.exit(main())
