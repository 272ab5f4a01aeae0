"""Measures the CPU time of a tower for each message of an agent: reports and batches of dumps.

A tower gets the messages of an imagined job over HTTP, as fast as it accepts them. Wall times do not
count, so that the result is the same on a busy machine. Printed are milliseconds of CPU time for one
message: of the thread with the event loop, and of all other threads (the store).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import uvloop

from benchmarks.fleet import AGE_S, LAYOUTS, STEP, Node, imagine

CONNECTIONS = 64
STEPS = 6


def cpu_of_threads(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of the main thread and of all other threads of a process."""
    main = others = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(") ")[2].split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        if int(task.name) == pid:
            main = used
        else:
            others += used
    return main, others


async def post_all(address: tuple[str, int], path: str, bodies: list[bytes]) -> None:
    """Send messages over some connections; each must be accepted."""

    async def post(some: list[bytes]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        for body in some:
            line = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            writer.write(f"{line}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert b" 200 " in head.split(b"\r\n")[0], head
            fields = dict(part.split(b": ", 1) for part in head.split(b"\r\n")[1:] if b": " in part)
            await reader.readexactly(int(fields[b"content-length"]))
        writer.close()

    await asyncio.gather(*(post(bodies[n::CONNECTIONS]) for n in range(CONNECTIONS)))


def write_report(node: Node, step: int, age_s: float) -> bytes:
    body = node.report.replace(b"%d" % STEP, b"%d" % step)
    return body.replace(b"%g" % AGE_S, b"%.3f" % age_s)


def measure(name: str, profile: str) -> None:
    nodes, _ = imagine(name)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.fleet_tower", f"{folder}/data"]
        with subprocess.Popen(
            [*command, f"{folder}/tower.json"], stdout=subprocess.PIPE, text=True
        ) as tower:
            assert tower.stdout is not None
            url = tower.stdout.readline().strip()
            address = ("127.0.0.1", int(url.rpartition(":")[2]))
            print(f"{name} ranks on {len(nodes)} nodes, ms of CPU time for one message:")

            def send(what: str, path: str, bodies: list[bytes]) -> None:
                before = cpu_of_threads(tower.pid)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(post_all(address, path, bodies))
                after = cpu_of_threads(tower.pid)
                main, others = ((b - a) / len(bodies) for a, b in zip(before, after, strict=True))
                kb = sum(map(len, bodies)) / len(bodies) / 1000
                print(f"  {what:<18} {kb:5.1f} kB  loop {1000 * main:6.3f}  others {1000 * others:6.3f}", flush=True)

            for step in range(STEPS):
                bodies = [write_report(node, step, 0.1) for node in nodes]
                send("a report", "/ingest/v1/report", bodies)
            spy = None
            if profile:
                spy = subprocess.Popen(["py-spy", "record", "-d", "20", "-r", "200", "-p", str(tower.pid), "-f", "raw", "-o", profile])
            for number in (0, 1):
                send("a batch of dumps", "/ingest/v1/dumps", [n.batches[number] for n in nodes])
            if spy: spy.wait()
            tower.send_signal(signal.SIGTERM)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="2048", help=f"comma-separated: {list(LAYOUTS)}")
    parser.add_argument("--profile", default="", help="a file for a profile by py-spy")
    args = parser.parse_args()
    for name in args.sizes.split(","):
        measure(name, args.profile)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
