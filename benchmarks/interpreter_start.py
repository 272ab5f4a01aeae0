"""Measures the cost of WATCHTOWER_HEARTBEAT=auto for every start of Python with the client
installed.

Three interpreters are started in turns, in a new order each round, so that noise of the machine
affects all: one without the client, one with its .pth file and the variable unset, one with it set.
The numbers are medians. The cost of the .pth file itself is measured inside one interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter_ns

HEARTBEAT = Path(__file__).parents[1] / "heartbeat"
SWITCH = "watchtower_heartbeat_auto.pth"
LINE_ALONE = """
import site, sys, time
def once():
    begun = time.perf_counter_ns()
    site.addpackage(sys.argv[1], sys.argv[2], set())
    return time.perf_counter_ns() - begun
print(sorted(once() for _ in range(2001))[1000] / 1e3)
"""


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=301)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        bare, with_client = (make_environment(Path(folder) / name) for name in ("bare", "client"))
        packages = install_client(with_client)
        subjects = {
            "without_client": (bare, ""),
            "unset": (with_client, ""),
            "auto": (with_client, "auto"),
        }
        times: dict[str, list[float]] = {name: [] for name in subjects}
        for _ in range(rounds):
            for name in random.sample(list(subjects), len(subjects)):
                times[name].append(time_start(*subjects[name]))
        line_us = subprocess.check_output([bare, "-c", LINE_ALONE, packages, SWITCH], env=clean())
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(
        json.dumps(
            {f"{name}_ms": round(value, 2) for name, value in medians.items()}
            | {
                "unset_ratio": round(medians["unset"] / medians["without_client"], 3),
                "auto_ratio": round(medians["auto"] / medians["without_client"], 3),
                "pth_line_unset_us": round(float(line_us), 1),
            }
        )
    )


def make_environment(folder: Path) -> str:
    """Return the Python of a new, empty virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return str(folder / "bin" / "python")


def install_client(python: str) -> str:
    """Copy the client to the folder that a wheel uses; return that folder."""
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.check_output([python, "-c", program], text=True).strip()
    for name in (SWITCH, "watchtower_heartbeat_auto.py"):
        shutil.copy(HEARTBEAT / name, packages)
    shutil.copytree(HEARTBEAT / "watchtower_heartbeat", f"{packages}/watchtower_heartbeat")
    return packages


def time_start(python: str, value: str) -> float:
    """Return the ms of a Python that does nothing."""
    begun = perf_counter_ns()
    subprocess.run([python, "-c", ""], env=clean() | {"WATCHTOWER_HEARTBEAT": value}, check=True)
    return (perf_counter_ns() - begun) / 1e6


def clean() -> dict[str, str]:
    """Return our environment without variables of our own Python or of the client."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "WATCHTOWER_"))
    }


if __name__ == "__main__":
    main()
