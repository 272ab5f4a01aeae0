"""Runs the quick tier: some processes of pytest at a time, each with a share of the test files.

    python -m tests.quick [--without PACKAGE] [--no-drills] [--changed] [-- OPTION OF PYTEST ...]

A file is imported and run by one process only. xdist would collect all tests in each process, or
send each report to another process, which took 50 of 200 CPU seconds of 7,900 tests.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, NamedTuple

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent

DRILLS = "tests/system/e2e/test_drills.py"
QUICK = {
    f"{DRILLS}::test_the_drill_gets_the_right_rank_and_cause[{name}]"
    for name in ("dataloader_sleep", "exception", "rare_pause")
}
"""A fault that stacks show, a death and a healthy job: `make test` runs these drills too."""

DRILLS_S = 42
"""They take as long together on two idle cores, and mostly wait."""

WAITING = {
    "test_connections.py": 12,
    "test_direct_answers.py": 3,
    "test_http_post.py": 2,
    "test_outage_alerts.py": 5,
    "test_destinations.py": 3,
    "test_foreign_servers.py": 2,
    "test_guarded_reads.py": 5,
    "test_hostile_places.py": 2,
    "test_ring.py": 2,
    "test_process.py": 1,
    "test_program.py": 2,
    "test_shipping.py": 2,
    "test_own_metrics.py": 3,
    "test_silenced_alerts.py": 2,
    "test_failing_store.py": 4,
    "test_notifier.py": 4,
}
"""Seconds of the files that mostly wait: they have two processes of their own, so that the others
never wait."""

LONG = {
    "test_aftermath.py": 2,
    "test_api.py": 2,
    "test_no_heartbeat.py": 2,
}
"""Seconds of the files that compute for longer than their size lets expect."""

BYTES_PER_S = 25_000
"""So much of any other file is run in a second, more or less."""

TIER = "not (system or long) or quick"
MEMORY = Path("/dev/shm")
"""Files of tests are made here, if there is space: half of the time of a test that has a store is
that of the disk."""

SPACE_BYTES = 1 << 30
"""Files of all tests take a fifth of it. A container often has only 64 MB."""

GRACE_S = 10.0
"""A process that was told to end has so long to end those of its drills."""


class Share(NamedTuple):
    """What one process of pytest runs. `output` is an open file without a name."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]


def main() -> int:
    """Run the shares, print what failed, and return 0 if nothing did."""
    parser = argparse.ArgumentParser(prog="python -m tests.quick", description=__doc__)
    parser.add_argument("--without", metavar="PACKAGE", help="a folder of tests that is left out")
    parser.add_argument("--no-drills", action="store_true", help="start no drill")
    parser.add_argument("--changed", action="store_true", help="only what changed files touch")
    parser.add_argument("options", nargs="*", help="options of pytest, after `--`")
    arguments = parser.parse_args()
    files = find_files(arguments.without)
    if arguments.changed:
        files = find_touched(find_changed(), files)
    drills = [] if arguments.no_drills or arguments.changed else [DRILLS]
    shares = [share for share in divide(files, drills, os.cpu_count() or 1) if share]
    if not shares:
        print("no test of the quick tier imports what changed")
        return 0
    with TemporaryDirectory(prefix="watchtower-", dir=find_memory()) as folder:
        places = [f"--basetemp={folder}/{number}" for number in range(len(shares))]
        return run(
            [place, *arguments.options, *map(str, share)]
            for place, share in zip(places, shares, strict=True)
        )


def find_memory() -> Path | None:
    """Return a folder whose files lie in memory, if it has space."""
    try:
        return MEMORY if shutil.disk_usage(MEMORY).free >= SPACE_BYTES else None
    except OSError:
        return None


def find_files(without: str | None = None) -> list[Path]:
    """Return the test files of the tier, relative to the repository: every package in tests but
    the system tier, which a process would collect for a second."""
    left_out = {TESTS / "system", TESTS / (without or "system")}
    folders = [init.parent for init in sorted(TESTS.glob("*/__init__.py"))]
    return [
        file.relative_to(ROOT)
        for folder in folders
        if folder not in left_out
        for file in sorted(folder.rglob("test_*.py"))
    ]


def divide(files: Iterable[Path], drills: Sequence[str], processors: int) -> list[list[Path]]:
    """Return the shares: two of what waits, and as many of the rest as there are processors."""
    waits: dict[Path, float] = dict.fromkeys(map(Path, drills), DRILLS_S)
    computes: dict[Path, float] = {}
    for file in files:
        if file.name in WAITING:
            waits[file] = WAITING[file.name]
        else:
            size = (ROOT / file).stat().st_size
            computes[file] = LONG.get(file.name, size / BYTES_PER_S)
    return [*balance(waits, 2), *balance(computes, max(2, min(processors, 8)))]


def balance(seconds: dict[Path, float], parts: int) -> list[list[Path]]:
    """Return the files in parts that take about as long, the longest files first."""
    shares: list[list[Path]] = [[] for _ in range(parts)]
    totals = [0.0] * parts
    for file in sorted(seconds, key=lambda file: (-seconds[file], file)):
        least = totals.index(min(totals))
        shares[least].append(file)
        totals[least] += seconds[file]
    return shares


def run(shares: Iterable[Sequence[str]]) -> int:
    """Run pytest once for each share, print the results as they come; return the worst status."""
    start, worst = time.monotonic(), 0
    running = [begin(share) for share in shares]
    try:
        while running:
            done = next((share for share in running if share.process.poll() is not None), None)
            if done is None:
                time.sleep(0.05)
                continue
            running.remove(done)
            status = done.process.returncode
            if status == pytest.ExitCode.NO_TESTS_COLLECTED:
                status = 0  # all that a change touches may be of the other tier
            done.output.seek(0)
            text = done.output.read().decode("utf-8", "replace")
            print(text if status else text.rstrip().rpartition("\n")[2], flush=True)
            worst = max(worst, abs(status))
    except KeyboardInterrupt:
        worst = 130
    finally:
        end(running)
    print(f"{'FAILED' if worst else 'passed'} in {time.monotonic() - start:.0f} s", flush=True)
    return worst


def begin(options: Sequence[str]) -> Share:
    """Start pytest in a session of its own, so that Ctrl-C ends it once."""
    output = TemporaryFile()  # noqa: SIM115  it is read when the process has ended
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", TIER]
    process = subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return Share(process, output)


def end(running: Sequence[Share]) -> None:
    """Interrupt the processes that still run, and wait for them."""
    for share in running:
        share.process.send_signal(signal.SIGINT)
    for share in running:
        try:
            share.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            share.process.kill()


def find_changed() -> set[str]:
    """Return the files that differ from the last commit, and new ones; of a clean tree, those of
    the last commit."""

    def ask(*words: str) -> set[str]:
        return set(subprocess.check_output(["git", *words], cwd=ROOT, text=True).splitlines())

    found = ask("diff", "--name-only", "HEAD") | ask("ls-files", "--others", "--exclude-standard")
    return found or ask("diff", "--name-only", "HEAD~1")


def find_touched(changed: Iterable[str], files: Iterable[Path]) -> list[Path]:
    """Return the test files that changed or import what changed. Of documents: the contracts."""
    paths = [Path(file) for file in changed]
    modules = [name for path in paths if (name := name_of(path))]
    others = any(path.suffix != ".py" for path in paths)
    wanted = re.compile("|".join(map(imports_of, modules)) or r"(?!)", re.MULTILINE)
    return [
        file
        for file in files
        if file in paths
        or wanted.search((ROOT / file).read_text("utf-8"))
        or (others and file.is_relative_to("tests/contract"))
    ]


def name_of(file: Path) -> str:
    """Return the module of a source file; of another file, the package that it lies in, or ""."""
    if file.suffix == ".py":
        return ".".join(file.with_suffix("").parts)
    return ".".join(file.parent.parts) if (ROOT / file.parent / "__init__.py").is_file() else ""


def imports_of(module: str) -> str:
    """Return a pattern of the lines that import a module or something in it."""
    package, _, name = module.rpartition(".")
    whole = rf"^(?:from|import) {re.escape(module)}\b"
    return rf"{whole}|^from {re.escape(package)} import .*\b{re.escape(name)}\b"


if __name__ == "__main__":
    sys.exit(main())
