"""The benchmarks of the tower run, with a tiny fleet. Their numbers are not judged here."""

import re
import subprocess
import sys


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_storm_of_agents_that_obey_nothing():
    printed = run("benchmarks.fleet", "--sizes", "64", "--only", "storm")
    assert "dumps accepted 16 of 16" in printed
    assert re.search(r"suspect \d+\.\d s, right cause", printed)
    assert "diagnosed" in printed


def test_the_cost_of_a_report_in_two_versions():
    printed = run("benchmarks.report_cost", "--size", "64", "--rounds", "1", "--seconds", "2")
    assert printed.count("ratio") == 2
    assert printed.count(" 0 not accepted") == 4
