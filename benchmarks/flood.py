"""One agent on a node that is flooded with processes or pages: does it still watch other ranks?

Starts a job that floods, then a good one of four ranks, then checks the reports of a real agent.
Prints the delay until the good ranks are reported with heartbeats, the longest gap between reports,
the tick times, and the agent's memory. `--check` exits 1 if the good ranks are not reported in
time.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from itertools import pairwise
from typing import Any, ClassVar

from watchtower.service.interpreter import module_command

TRAINER = """
import sys, time
from watchtower_heartbeat import Heartbeat
beat = Heartbeat(job="good", rank=int(sys.argv[1]), world_size=4).beat
step = 0
while True:
    step += 1
    beat(step)
    time.sleep(0.1)
"""
FLOODS = {
    # Programs that carry a rank and have no page.
    "processes": """
import os, sys, time
for number in range(int(sys.argv[1])):
    os.posix_spawn("/bin/sleep", ["sleep", "3600"], {**os.environ, "RANK": str(number)})
print("ready", flush=True)
time.sleep(3600)
""",
    # Forks that each make a page and send one heartbeat.
    "paged": """
import os, sys, time
from watchtower_heartbeat import Heartbeat
for number in range(int(sys.argv[1])):
    if not os.fork():
        Heartbeat(job="flood", rank=number, world_size=int(sys.argv[1])).beat(1)
        time.sleep(3600)
        os._exit(0)
print("ready", flush=True)
time.sleep(3600)
""",
    # One process with this many files that have the name of a page.
    "pages": """
import os, sys, time

for number in range(int(sys.argv[1])):
    os.ftruncate(os.memfd_create("watchtower-heartbeat"), 4096)
print("ready", flush=True)
time.sleep(3600)
""",
}
GOOD_RANKS = 4
IN_TIME_S = 60.0


class Tower(http.server.BaseHTTPRequestHandler):
    """Receives reports, and records their times and the good ranks in them."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[float, int, str]]] = []

    def do_POST(self) -> None:
        report: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        good = [r for r in report["ranks"] if r["job"] == "good" and r["beat"] and not r["ended"]]
        says = "; ".join(each["text"] for each in report["unwatched"])
        self.seen.append((time.monotonic(), len(good), says))
        answer = b'{"version": 1}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def run_flood(kind: str, count: int, watch_s: float) -> dict[str, Any]:
    """Run one flood. Every process that it starts has ended afterwards."""
    Tower.seen = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tower)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    mark = uuid.uuid4().hex
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str, **environment: str) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(
                command,
                env={**os.environ, "FLOOD_MARK": mark, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        return started[-1]

    try:
        flood = start(sys.executable, "-c", FLOODS[kind], str(count), WATCHTOWER_JOB="flood")
        assert flood.stdout is not None
        flood.stdout.readline()
        with tempfile.TemporaryFile() as log:
            agent = subprocess.Popen(
                [
                    *module_command("agent", "run", "--node", "n1", "--port", "0"),
                    *("--tower", f"http://127.0.0.1:{server.server_port}"),
                    *("--match", f"FLOOD_MARK={mark}"),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
            )
            started.append(agent)
            assert agent.stdout is not None
            metrics = re.search(rb"http\S+/metrics", agent.stdout.readline())
            time.sleep(5)
            began = time.monotonic()
            for rank in range(GOOD_RANKS):
                start(sys.executable, "-c", TRAINER, str(rank))
            found_s = wait_for_good(began)
            time.sleep(watch_s)
            assert metrics is not None
            return {
                "flood": kind,
                "count": count,
                "good_found_s": found_s,
                **measure(metrics[0].decode(), since=began),
                "log_bytes": log.seek(0, os.SEEK_END),
            }
    finally:
        for process in reversed(started):
            os.killpg(process.pid, signal.SIGKILL) if process is not started[1] else process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        server.shutdown()
        server.server_close()


def wait_for_good(began: float) -> float | None:
    """Return when all good ranks were reported with heartbeats; None after the deadline."""
    while time.monotonic() < began + IN_TIME_S:
        if Tower.seen and Tower.seen[-1][1] == GOOD_RANKS:
            return round(Tower.seen[-1][0] - began, 1)
        time.sleep(0.1)
    return None


def measure(url: str, since: float) -> dict[str, Any]:
    """Return the agent's own metrics and the gaps between its reports."""
    with urllib.request.urlopen(url, timeout=30) as response:
        text = response.read().decode()
    value = {
        name: float(number)
        for name, number in re.findall(r"^(\w+)\{node=\"n1\"\} ([\d.e+]+)$", text, re.MULTILINE)
    }
    tick = "watchtower_agent_tick_duration_seconds"
    times = [at for at, _, _ in Tower.seen if at >= since]
    return {
        "longest_gap_s": round(max(b - a for a, b in pairwise(times)), 2),
        "good_lost": sum(good < GOOD_RANKS for _, good, _ in Tower.seen[-10:]),
        "mean_tick_s": round(value[f"{tick}_sum"] / value[f"{tick}_count"], 3),
        "memory_mb": round(value["process_resident_memory_bytes"] / 1e6),
        "descriptors": int(value["process_open_fds"]),
        "says": Tower.seen[-1][2],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--floods", default=",".join(FLOODS), help="comma-separated names")
    parser.add_argument("--seconds", type=float, default=20.0, help="of watching afterwards")
    parser.add_argument("--check", action="store_true", help="exit 1 when a good rank is lost")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the flood ends too
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    lost = False
    for kind in args.floods.split(","):
        row = run_flood(kind, args.count, args.seconds)
        lost |= row["good_found_s"] is None or row["good_lost"] > 0
        print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    return 1 if args.check and lost else 0


if __name__ == "__main__":
    sys.exit(main())
