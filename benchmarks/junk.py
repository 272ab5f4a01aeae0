"""Garbage as from ten broken or hostile agents: bodies, and connections that misbehave."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import socket
from collections.abc import Iterator
from dataclasses import asdict

from watchtower.wire.bounds import MAX_FRAMES
from watchtower.wire.stacks import Frame, make_stack

REPORT, DUMPS = "/ingest/v1/report", "/ingest/v1/dumps"

Post = tuple[str, bytes]


def vitals(job: str, rank: int, pid: int, **more: object) -> dict:
    beat = {"step": 5, "age_s": 100.0, "interval_s": 1.0, "advanced": 0}
    return {"job": job, "rank": rank, "pid": pid, "start_time": pid, "beat": beat, **more}


def report(node: str, ranks: list[dict], **more: object) -> bytes:
    head = {"version": 1, "node": node, "agent_id": node, "interval_s": 1.0}
    return json.dumps(head | {"ranks": ranks} | more).encode()


def dumps(job: str, number: int, *, stacks: list[dict], ranks: list[dict] | None = None) -> bytes:
    head = {"version": 1, "id": f"junk-{number}", "node": "junk", "job": job, "round": 1}
    tail = {"reason": "deadline", "held_s": 0.0, "ranks": ranks or [], "stacks": stacks}
    return json.dumps(head | tail).encode()


def stack(number: int, frames: int) -> dict:
    """Return a stack with the right digest: with a wrong one it would be dropped."""
    frame = Frame(function="f" * 100, file="g" * 100, line=number)
    named = make_stack((frame,) * min(frames, MAX_FRAMES))
    return {"digest": named.digest, "frames": [asdict(frame)] * frames}


HOSTILE_NAMES = (
    "\x1b[2J\x1b]0;owned\x07",
    "<!channel> <@U012AB3CD> <https://evil.example|click>",
    "`` ` [x](https://evil.example) ``` ",
    "**b** _i_ ~s~ | # h\n```\ncode",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "\u202etxt.exe\u2066\u200b\ufeff",
    "\x00\x01\x7f\x9b31m",
    'a"} 1\nwatchtower_jobs 7\n',
    "../../etc/passwd",
    "'; DROP TABLE incidents; --",
    "%s %d {0} ${x}",
    "n" * 256,
)


def bodies(good_job: str, seed: int) -> Iterator[Post]:
    """Yield garbage without end, every kind in turn."""
    chance, numbers = random.Random(seed), itertools.count(seed * 10**9)
    kinds = (
        lambda: (REPORT, os.urandom(chance.randrange(1, 5000))),
        lambda: (REPORT, report("cut", [vitals("cut", 0, 1)])[: chance.randrange(1, 150)]),
        lambda: (REPORT, b'{"version": 1, "limits": ' + b"[" * 100_000),
        lambda: (REPORT, b'{"version":1,"node":"n","interval_s":1,"x":' + b"9" * 10**6 + b"}"),
        lambda: (REPORT, report("types", [{"job": 1, "rank": "x", "pid": None}] * 1000)),
        lambda: (REPORT, report("n", [vitals("w", 0, 1, world_size=1_000_000)])),
        lambda: (REPORT, report("m" * 1_000_000, [])),
        # Well-formed but false: jobs that do not exist, on nodes that do not exist, all of them
        # hung.
        lambda: (REPORT, report(f"ghost-{next(numbers)}", many_jobs(next(numbers), 100))),
        lambda: (REPORT, report(f"ghost-{next(numbers)}", one_job(next(numbers), 1024))),
        lambda: (
            REPORT,
            report(f"huge-{seed}", [vitals(f"huge-{seed}", 7, 7, world_size=262_144)]),
        ),
        lambda: (REPORT, report(f"thief-{seed}", [vitals(good_job, r, 9) for r in range(8)])),
        lambda: (REPORT, report(f"rude-{seed}", hostile_jobs())),
        lambda: (DUMPS, dumps(good_job, next(numbers), stacks=[stack(1, 512)] * 20)),
        lambda: (DUMPS, dumps(f"nobody-{next(numbers)}", next(numbers), stacks=[stack(1, 10)])),
        lambda: (DUMPS, dumps("deep", next(numbers), stacks=[stack(1, 20_000)])),
        lambda: (DUMPS, dumps("long", next(numbers), stacks=[], ranks=[{"rank": "x" * 10**6}])),
    )
    while True:
        for kind in kinds:
            yield kind()


def many_jobs(number: int, count: int) -> list[dict]:
    return [vitals(f"invented-{number}-{n}", n % 4, n + 1) for n in range(count)]


def one_job(number: int, ranks: int) -> list[dict]:
    return [vitals(f"invented-{number}", rank, rank + 1) for rank in range(ranks)]


def hostile_jobs() -> list[dict]:
    return [vitals(name, 0, n + 1, wchan=name) for n, name in enumerate(HOSTILE_NAMES)]


def heads(host: str) -> Iterator[bytes]:
    """Yield connections that are not HTTP, or never end."""
    start = f"POST {REPORT} HTTP/1.1\r\nHost: {host}\r\n".encode()
    while True:
        yield b""  # sends nothing
        yield start  # a head that never ends
        yield start + b"X: " + b"y" * 200_000  # a header without end
        yield start + b"X: y\r\n" * 20_000 + b"\r\n"
        yield start + b"Content-Length: 1000\r\n\r\n{"  # a body that never comes
        yield start + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
        yield start + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"x" * 200_000
        yield start + b"Content-Length: 1\r\n\r\n" + b"{}" * 5000  # more than Content-Length
        yield start + b"Content-Length: 99999999999999999999\r\n\r\n"
        yield start + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        yield b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 200 + b"\x00\xff" * 500
        yield os.urandom(3000)
        yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"  # TLS
        yield b"GET /" + b"a" * 200_000


def connect(
    address: tuple[str, int], head: bytes, source: tuple[str, int] | None = None
) -> socket.socket:
    """Open a connection and send bytes; return it. The caller may close it."""
    connection = socket.create_connection(address, timeout=5, source_address=source)
    with contextlib.suppress(OSError):  # the tower may have closed it already
        connection.sendall(head)
    return connection
