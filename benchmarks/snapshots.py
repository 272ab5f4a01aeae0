"""Measures a verdict without a tower: snapshot to verdict on one node, and the files of 64 nodes.

    python -m benchmarks.snapshots [--ranks 512] [--local 8]

The imagined job of 512 ranks has tensor, data and pipeline parallelism, with the collective logs of
three groups for each rank. The processes of the real job are those of a system test.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import msgspec

from tests.synthesis.evidence import Maker, Recording
from tests.synthesis.faults import LOADING
from tests.synthesis.layout import Layout
from tests.synthesis.messages import write_batches, write_reports
from tests.synthesis.timeline import run
from tests.system.snapshots.hung_star import AGENT, NODE, star
from watchtower.evidence.case import Case
from watchtower.service.interpreter import module_command
from watchtower.wire.snapshot import SNAPSHOT_FORMAT, Snapshot

LAYOUTS = {16: Layout(tensor=2, data=2, pipeline=4), 512: Layout(tensor=8, data=8, pipeline=8)}
NODE_LIMIT_S, FILES_LIMIT_S = 10.0, 1.0
GAP_S, TIMES = 3.0, 5
DIAGNOSE = module_command("watchtower", "diagnose")


def main() -> int:
    """Print both times; returns 1 if one is over its limit: of the files, by CPU time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=512, choices=tuple(LAYOUTS), help="in files")
    parser.add_argument("--local", type=int, default=8, help="ranks on one node")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="snapshots-") as text:
        ok = _measure_files(Path(text), LAYOUTS[args.ranks]) <= FILES_LIMIT_S
        return 0 if _measure_node(Path(text), args.local) <= NODE_LIMIT_S and ok else 1


def _measure_files(folder: Path, layout: Layout) -> float:
    stuck = layout.size // 3
    outcome = run(layout, stops={stuck: 1})
    case = Maker(layout, Recording()).make(outcome, {stuck: LOADING})
    files = _write_files(case, folder)
    size = sum(file.stat().st_size for file in files)
    walls, cpus = [], []
    for _ in range(TIMES):
        used, began = _child_cpu_s(), time.monotonic()
        done = subprocess.run(
            [*DIAGNOSE, "--within", "1d", *map(str, files)],
            capture_output=True,
            text=True,
            check=True,
        )
        walls.append(time.monotonic() - began)
        cpus.append(_child_cpu_s() - used)
    found = done.stdout.splitlines()
    print(f"{found[0]}\n  {found[1]}")
    print(
        f"{len(files)} files of {layout.size} ranks, {size / 1e6:.1f} MB: verdict after "
        f"{min(walls):.2f} s ({min(cpus):.2f} s CPU), best of {TIMES}; limit {FILES_LIMIT_S:g} s "
        "of CPU time"
    )
    # One process on one core: on a free machine it takes no longer. A busy one says nothing of it.
    return min(cpus)


def _write_files(case: Case, folder: Path) -> list[Path]:
    dumps = defaultdict(list)
    for number in (1, 2):
        for batch in write_batches(case, number, dump=number - 3):
            dumps[batch.node].append(replace(batch, held_s=GAP_S * (2 - number)))
    files = []
    for report in write_reports([case]):
        snapshot = Snapshot(
            format=SNAPSHOT_FORMAT,
            watchtower="0.1.0",
            node=report.node,
            taken_at=time.time(),
            gap_s=GAP_S,
            reports=(report, report),
            dumps=tuple(dumps[report.node]),
        )
        files.append(folder / f"{report.node}.json")
        files[-1].write_bytes(msgspec.json.encode(snapshot))
    return files


def _measure_node(folder: Path, ranks: int) -> float:
    with star(size=ranks, per_node=ranks) as job:
        job.hang(ranks // 2)
        file, match = str(folder / "node.json"), f"{NODE}={job.mark_of(0)}"
        used, began = _child_cpu_s(), time.monotonic()
        for command in ((*AGENT, "snapshot", "--match", match, "-o", file), (*DIAGNOSE, file)):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        wall = time.monotonic() - began
        cpu = _child_cpu_s() - used
    print(done.stdout.splitlines()[0])
    print(
        f"{ranks} ranks on one node: snapshot to verdict {wall:.1f} s ({cpu:.2f} s CPU); limit "
        f"{NODE_LIMIT_S:g} s"
    )
    return wall


def _child_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
