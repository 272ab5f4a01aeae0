"""A job of imagined ranks, reported over real HTTP: it trains, then one rank hangs."""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import asdict, dataclass, field

from watchtower.wire.stacks import Frame, make_stack

RANKS, PER_NODE = 8, 4
TICK_S = 0.2

HUNG = make_stack(
    (
        Frame(function="__next__", file="/home/me/data.py", line=88),
        Frame(function="main", file="/home/me/train.py", line=30),
    )
)
WAITING = make_stack(
    (
        Frame(
            function="all_reduce",
            file="torch/distributed/distributed_c10d.py",
            line=2810,
            library=True,
        ),
        Frame(function="main", file="/home/me/train.py", line=33),
    )
)


@dataclass
class ImaginedJob:
    """Eight ranks on two nodes. Each node reports once a second like an agent."""

    name: str
    address: tuple[str, int]
    token: str = ""
    step_s: float = 1.0
    hung_rank: int = 2
    step: int = 0
    fault_at: float | None = None
    _began: float = field(default_factory=time.monotonic)
    _reported: dict[str, tuple[int, float]] = field(default_factory=dict)
    _deadline_s: float = float("inf")
    _rounds: list[float] = field(default_factory=list)
    _connections: dict[str, http.client.HTTPConnection] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    """Seconds of every report."""

    def run(self, seconds: float, is_done=lambda: False) -> None:
        """Run the job and its agents' reports for this many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not is_done():
            now = time.monotonic()
            if self.fault_at is None:
                self.step = int((now - self._began) / self.step_s)
            for node in range(RANKS // PER_NODE):
                last = self._reported.get(f"good-{node}", (0, 0.0))[1]
                if now - last >= 1.0:
                    self._report(f"good-{node}", node, now)
            self._dump_if_due(now)
            time.sleep(TICK_S)

    def hang(self) -> None:
        """Stop one rank; all others wait for it."""
        self.fault_at = self._began + self.step * self.step_s

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()

    def _report(self, node: str, number: int, now: float) -> None:
        before, _ = self._reported.get(node, (self.step, 0.0))
        self._reported[node] = (self.step, now)
        beat = {
            "step": self.step,
            "age_s": now - (self._began + self.step * self.step_s),
            "advanced": self.step - before,
            "interval_s": self.step_s if self.step > before else 0.0,
        }
        ranks = [
            {
                "job": self.name,
                "rank": rank,
                "pid": 100 + rank,
                "start_time": 5000 + rank,
                "world_size": RANKS,
                "beat": beat,
                "state": "S",
                "movement": {},
            }
            for rank in range(number * PER_NODE, (number + 1) * PER_NODE)
        ]
        message = {"version": 1, "node": node, "agent_id": node, "interval_s": 1.0, "ranks": ranks}
        began = time.monotonic()
        reply = self._post(node, "/ingest/v1/report", message)
        self.latencies_s.append(time.monotonic() - began)
        for deadline in reply.get("deadlines", ()):
            self._deadline_s = deadline["after_s"]

    def _dump_if_due(self, now: float) -> None:
        """Dump like agents: when the deadline passes, and again one second later."""
        if self.fault_at is None or len(self._rounds) == 2:
            return
        due = self.fault_at + self._deadline_s + len(self._rounds)
        if now < due:
            return
        self._rounds.append(now)
        for number in range(RANKS // PER_NODE):
            # Each node has an agent, and each agent has a thread for its dumps.
            words = (f"good-{number}", number, len(self._rounds))
            threading.Thread(target=self._dump, args=words, daemon=True).start()

    def _dump(self, node: str, number: int, round_number: int) -> None:
        dumps = []
        for rank in range(number * PER_NODE, (number + 1) * PER_NODE):
            stack = HUNG if rank == self.hung_rank else WAITING
            dumps.append(
                {
                    "rank": rank,
                    "pid": 100 + rank,
                    "start_time": 5000 + rank,
                    "step": self.step,
                    "kernel": {"state": "S", "syscall": "read" if stack is HUNG else "poll"},
                    "threads": [{"name": "MainThread", "digest": stack.digest, "main": True}],
                }
            )
        stacks = [asdict(HUNG), asdict(WAITING)]
        self._post(
            node,
            "/ingest/v1/dumps",
            {
                "version": 1,
                "id": f"{self.name}-{node}-{round_number}",
                "node": node,
                "job": self.name,
                "round": round_number,
                "reason": "deadline",
                "held_s": 0.0,
                "ranks": dumps,
                "stacks": stacks,
            },
        )

    def _post(self, node: str, path: str, message: dict) -> dict:
        """Post as one node. Failed requests are repeated as an agent does."""
        body = json.dumps(message)
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        for _ in range(20):
            connection = self._connections.setdefault(
                f"{node}{path}", http.client.HTTPConnection(*self.address, timeout=5)
            )
            try:
                connection.request("POST", path, body, headers)
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                continue
            if response.status == 200:
                return json.loads(answer)
            if path.endswith("report"):
                return {}
            time.sleep(0.5)
        return {}
