"""Measures the time from a hung job to its notification: directly, and through Prometheus.

The tower, Prometheus and Alertmanager are real, with the files of deploy/prometheus and their
intervals. Simulated agents report small jobs, one after the other hangs. The time begins when the
incident opens. `python -m benchmarks.alert_routes --hangs 5`; exits 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.alerts.receivers import Receiver as DirectReceiver
from tests.alerts.receivers import receiving as receiving_direct
from tests.system.hung_jobs import FAST, SmallJob, reporting
from tests.system.monitoring import Receiver, receiving, watching
from tests.towers import running_tower
from watchtower.commands.client import TowerClient
from watchtower.writing.times import read_time

DIRECT_S, PROMETHEUS_S = 1.0, 12.0
"""Longest time to the notification in seconds, by route."""

DEADLINE_S = 60.0

SCRAPE_S = 5.0
"""The documented interval: the moments of the hangs are spread over it."""


def wait_for(is_so: Callable[[], object], what: str) -> float:
    """Return the UNIX time at which it was so."""
    until = time.monotonic() + DEADLINE_S
    while not is_so():
        if time.monotonic() > until:
            sys.exit(f"{what}: not within {DEADLINE_S:g} s")
        time.sleep(0.01)
    return time.time()


def measure(job: SmallJob, direct: DirectReceiver, prometheus: Receiver) -> tuple[float, float]:
    """Stop a job. Return the seconds from its incident to each notification."""

    def find() -> list[int]:
        jobs = [alert["labels"]["training_job"] for alert in direct.alerts]
        return [number for number, name in enumerate(jobs) if name == job.name]

    time.sleep(random.uniform(0, SCRAPE_S))
    job.stop()
    wait_for(find, f"the direct alert of {job.name}")
    first = find()[0]
    opened_at = read_time(direct.alerts[first]["startsAt"]).timestamp()
    arrived_at = wait_for(lambda: prometheus.sent("firing", job.name), f"the alert of {job.name}")
    return direct.arrivals[first] - opened_at, arrived_at - opened_at


def main() -> None:
    """Print one line for each hang, and the longest times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hangs", type=int, default=5)
    hangs = parser.parse_args().hangs
    jobs = [SmallJob(f"llama-{number}") for number in range(hangs)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        direct = stack.enter_context(receiving_direct())
        secret = folder / "webhook-url"
        secret.write_text(direct.url)
        secret.chmod(0o600)
        config = folder / "tower.toml"
        config.write_text(f'{FAST}\n[alerts]\nwebhook_url_file = "{secret}"\n')
        tower = stack.enter_context(running_tower(folder, "--config", str(config)))
        stack.enter_context(reporting(tower.url, *jobs))
        prometheus = stack.enter_context(receiving())
        host, port = tower.address
        watched = stack.enter_context(watching(folder, f"{host}:{port}", prometheus))
        client = TowerClient(tower.url)
        wait_for(watched.is_up, "the first scrape")

        def have_stepped() -> bool:
            found = client.jobs()
            return len(found) == hangs and all((job["step"] or 0) >= 12 for job in found)

        wait_for(have_stepped, "the steps of every job")
        times = []
        for job in jobs:
            times.append(measure(job, direct, prometheus))
            print(f"{job.name}: direct {times[-1][0]:.2f} s, Prometheus {times[-1][1]:.1f} s")
    slowest = [max(each) for each in zip(*times, strict=True)]
    print(f"longest: direct {slowest[0]:.2f} s, Prometheus {slowest[1]:.1f} s")
    sys.exit(slowest[0] > DIRECT_S or slowest[1] > PROMETHEUS_S)


if __name__ == "__main__":
    main()
