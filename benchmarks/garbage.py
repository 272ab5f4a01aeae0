"""Ten agents' worth of garbage per second: do the verdicts on good jobs arrive as before?

Two towers run one after the other, on the same machine with the same job: eight imagined ranks that
report over HTTP, one of which hangs. The first run is alone. In the second, ten processes send
garbage of every kind, each as fast as an agent reports or faster. Prints fault-to-verdict of both,
their ratio, the time of the good reports, and the tower's memory.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import junk
from benchmarks.imagined_job import ImaginedJob
from tests.towers import RunningTower, running_tower
from watchtower.commands.client import ClientError, TowerClient

VERDICT_DEADLINE_S = 120.0
SPAWN = multiprocessing.get_context("spawn")


@dataclass
class Outcome:
    """The measurements of one run."""

    garbage_per_s: float
    right: bool
    fault_to_verdict_s: float
    report_p50_ms: float
    report_max_ms: float
    tower_mb_before: float
    tower_mb_after: float
    tower_cpu_share: float


def send_garbage(address: tuple[str, int], seed: int, per_s: float, sent) -> None:
    """Run one garbage client: bodies at a rate, and as many connections that misbehave."""
    bodies, heads = junk.bodies("good", seed), junk.heads("127.0.0.1")
    open_connections = []
    source = (f"127.0.0.{seed + 2}", 0)  # a node of its own
    connection = http.client.HTTPConnection(*address, timeout=5, source_address=source)
    at = time.monotonic()
    while True:
        path, body = next(bodies)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            connection.close()
        with contextlib.suppress(OSError):
            open_connections.append(junk.connect(address, next(heads), source))
        for old in open_connections[:-100]:
            old.close()
        del open_connections[:-100]
        sent.value += 1
        at += 1 / per_s
        time.sleep(max(0.0, at - time.monotonic()))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def verdict_of(client: TowerClient) -> dict:
    try:
        return client.verdict("good")
    except ClientError:
        return {}


def watch(
    tower: RunningTower, clients: int, per_s: float, warmup_s: float, duration_s: float
) -> Outcome:
    before, cpu_before, began = tower.resident_bytes, cpu_s(tower.process.pid), time.monotonic()
    counters = [SPAWN.Value("Q", 0) for _ in range(clients)]
    senders = [
        SPAWN.Process(target=send_garbage, args=(tower.address, n, per_s, c), daemon=True)
        for n, c in enumerate(counters)
    ]
    job, client = ImaginedJob("good", tower.address), TowerClient(tower.url)
    job.run(2.0)  # first, because the first client that claims a free rank owns it
    for sender in senders:
        sender.start()
    try:
        job.run(max(warmup_s, duration_s - warmup_s))
        job.hang()
        seen: dict = {}

        def is_done() -> bool:
            seen.update(verdict_of(client))
            return bool(seen.get("suspects"))

        job.run(VERDICT_DEADLINE_S, is_done)
        took = time.monotonic() - job.fault_at
        job.run(max(0.0, began + duration_s - time.monotonic()))
    finally:
        for sender in senders:
            sender.terminate()
            sender.join()
        job.close()
    elapsed = time.monotonic() - began
    suspects = [one["rank"] for one in seen.get("suspects", ())]
    return Outcome(
        garbage_per_s=round(sum(c.value for c in counters) / elapsed, 1),
        right=(suspects, seen.get("cause")) == ([job.hung_rank], "dataloader_stall"),
        fault_to_verdict_s=round(took, 2),
        report_p50_ms=round(1000 * statistics.median(job.latencies_s), 1),
        report_max_ms=round(1000 * max(job.latencies_s), 1),
        tower_mb_before=round(before / 1e6),
        tower_mb_after=round(tower.resident_bytes / 1e6),
        tower_cpu_share=round((cpu_s(tower.process.pid) - cpu_before) / elapsed, 2),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warmup", type=float, default=14.0, help="least seconds before the hang")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--per-s", type=float, default=1.0, help="of each client")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 unless right and within 1.5 x")
    args = parser.parse_args()
    outcomes = []
    for clients in (0, args.clients):
        with tempfile.TemporaryDirectory() as folder, running_tower(Path(folder) / "t") as tower:
            seconds = args.seconds if clients else 0.0
            outcomes.append(watch(tower, clients, args.per_s, args.warmup, seconds))
            if not args.json:
                print("  ".join(f"{k}={v}" for k, v in asdict(outcomes[-1]).items()), flush=True)
    ratio = outcomes[1].fault_to_verdict_s / outcomes[0].fault_to_verdict_s
    is_good = all(outcome.right for outcome in outcomes) and ratio <= 1.5
    if args.json:
        print(json.dumps({"outcomes": [asdict(o) for o in outcomes], "ratio": round(ratio, 2)}))
    else:
        print(f"with garbage a verdict takes {ratio:.2f} times as long")
    return 1 if args.check and not is_good else 0


if __name__ == "__main__":
    raise SystemExit(main())
