"""A tower that times itself. `benchmarks/fleet.py` starts it, and reads its measurements at the
end.

It is the tower of `watchtower serve` with two additions: each request is timed from its first byte
to its reply, and a task measures the delays of the event loop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks import fleet_timeline
from watchtower import app
from watchtower.config import TowerConfig

LAG_EVERY_S = 0.005


class Timed:
    """Passes everything to an ASGI application, and records the time."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.direct = inner.direct
        self._answer = self.direct.answer
        self.direct.answer = self._answer_directly
        self._lag: asyncio.Task[None] | None = None
        self.took: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
        """By path: moment of the answer (monotonic), seconds, status."""
        self.lags: list[tuple[float, float]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        if self._lag is None:
            self._lag = asyncio.create_task(self._measure_lag())
        status, began = 0, time.monotonic()

        async def note(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        await self._inner(scope, receive, note)
        now = time.monotonic()
        self.took[scope["path"]].append((now, now - began, status))

    def _answer_directly(self, client: str, body: bytes) -> bytes | None:
        began = time.monotonic()
        reply: bytes | None = self._answer(client, body)
        if reply is not None:
            now = time.monotonic()
            self.took[self.direct.path.decode()].append((now, now - began, 200))
        return reply

    async def _measure_lag(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(LAG_EVERY_S)
            now = time.monotonic()
            self.lags.append((now, now - before - LAG_EVERY_S))


def main() -> None:
    data_dir, notes = sys.argv[1:3]
    folder = Path(notes).parent
    marks = fleet_timeline.watch_tower(str(folder))
    made: list[Timed] = []
    plain = app.make_app

    def timed(*args: Any, **options: Any) -> Any:
        made.append(Timed(plain(*args, **options)))
        return made[-1]

    app.make_app = timed  # type: ignore[assignment]
    try:
        app.serve(TowerConfig(port=0, data_dir=data_dir))
    finally:
        found = {"took": made[0].took, "lags": made[0].lags} if made else {}
        Path(notes).write_text(json.dumps(found))
        fleet_timeline.write(marks, folder / "marks.json")


if __name__ == "__main__":
    main()
