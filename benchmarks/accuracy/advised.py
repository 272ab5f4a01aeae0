"""Healthy jobs of twenty shapes beside one tower: which advisories do they show? Only true ones.

    python -m benchmarks.accuracy.advised --at-once 4

Prints a row for each shape: what its job was listed with, for as long as it ran. Exits 1 if a job
did not make steps, or had an advisory. Needs torch, transformers, accelerate, lightning, jax, ray.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.accuracy.advised_shapes import PROGRAM, SHAPES, Shape
from tests.system.small_jobs import FAST, beside
from watchtower.commands.client import ClientError, TowerClient
from watchtower.drills.launching import MARK, free_port, node_mark

RUN_S = 100.0
"""Seconds for one job, from its first step on. Advisories wait for at most 60 s."""

START_S = 240.0
"""Seconds until its first step: four frameworks are imported at a time."""

END_S = 10.0


@dataclass(slots=True)
class Shown:
    """What the tower listed for one job."""

    step: int = -1
    advisories: dict[str, str] = field(default_factory=dict)
    """Text by name of the advisory."""


def main() -> int:
    """Run all shapes, print what they showed, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--at-once", type=int, default=4, help="jobs at the same time (4)")
    parser.add_argument("--only", nargs="*", help="names of shapes (all)")
    parser.add_argument("--seconds", type=float, default=RUN_S, help="for one job (100)")
    args = parser.parse_args()
    shapes = [each for each in SHAPES if not args.only or each.name in args.only]
    with tempfile.TemporaryDirectory(prefix="advised-") as name:
        folder = Path(name)
        with beside(folder, FAST, nodes=2) as place, ThreadPoolExecutor(args.at_once) as pool:
            client = TowerClient(place.tower_url)
            found = pool.map(lambda each: watch(each, client, folder, args.seconds), shapes)
            rows = list(zip(shapes, found, strict=True))
    print("| shape | last step | advisories |\n|---|---|---|")
    for shape, shown in rows:
        listed = "; ".join(f"`{name}`: {text}" for name, text in shown.advisories.items())
        print(f"| {shape.what} | {shown.step} | {listed or 'none'} |")
    is_right = all(shown.step >= 0 and not shown.advisories for _, shown in rows)
    return 0 if is_right else 1


def watch(shape: Shape, client: TowerClient, folder: Path, seconds: float) -> Shown:
    """Run one job, and return what the tower listed while it ran."""
    shown, own = Shown(), folder / shape.name
    own.mkdir()
    (own / "train.py").write_text(PROGRAM, "utf-8")
    with ExitStack() as stack:
        port = free_port()
        for number in range(shape.processes):
            stack.callback(end, start(shape, number, port, own, folder))
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            note(client, shape, shown)
            if shown.step >= 0:
                until = min(until, time.monotonic() + seconds)
                while time.monotonic() < until:
                    note(client, shape, shown)
                    time.sleep(1.0)
            time.sleep(0.5)
    print(f"{shape.name}: step {shown.step}, {sorted(shown.advisories) or 'none'}", file=sys.stderr)
    return shown


def note(client: TowerClient, shape: Shape, shown: Shown) -> None:
    """Add what the tower lists now."""
    try:
        jobs = [each for each in client.jobs() if each["job"].startswith(shape.name)]
        for job in jobs:
            shown.step = max(shown.step, -1 if job["step"] is None else job["step"])
            for each in client.list_advisories(job["job"])["items"]:
                if each["job"]:
                    shown.advisories[each["advisory"]] = each["text"]
    except ClientError:
        return  # a busy machine: asked again in a second


def start(shape: Shape, number: int, port: int, own: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start one process of a job: a rank, or a launcher."""
    names = {"n": str(number), "port": str(port), "folder": str(own), "python": sys.executable}
    words = [each.format(**names) for each in shape.command]
    variables = {name: text.format(**names) for name, text in shape.environment.items()}
    job = {} if shape.names_itself else {"WATCHTOWER_JOB": shape.name}
    node = number % 2 if shape.on_two_nodes else 0
    with (own / f"{number}.log").open("wb") as log:
        return subprocess.Popen(
            words,
            cwd=own,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={
                **os.environ,
                MARK: node_mark(folder, node),
                "TMPDIR": str(own),
                "OMP_NUM_THREADS": "1",
                **job,
                **variables,
            },
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it has started."""
    for number in (15, 9):
        try:
            os.killpg(process.pid, number)
            process.wait(END_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
