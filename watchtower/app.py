"""The composition root of the tower: the one file that knows every part."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from watchtower import __version__
from watchtower.api import problems
from watchtower.api.health import health_routes
from watchtower.api.incidents import incident_routes
from watchtower.api.ingest import ingest_routes
from watchtower.api.jobs import job_routes
from watchtower.api.metrics import metrics_route
from watchtower.api.mutes import mute_routes
from watchtower.config import TowerConfig
from watchtower.store.sqlite import SqliteStore
from watchtower.systemd import Notifier
from watchtower.tower.clock import Clock
from watchtower.tower.health import say_state
from watchtower.tower.tower import Tower

log = logging.getLogger("watchtower")

TICK_S = 0.5
"""Twice per report interval: adds at most half a second to any decision."""

STOP_S = 2
"""Open connections get this long when the tower stops; with the store it stays under 5 s."""


def make_app(tower: Tower) -> FastAPI:
    """Put the routes of one tower together."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        notifier = Notifier()
        ticking = asyncio.create_task(tick_forever(tower, notifier))
        yield
        notifier.stopping()
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        await tower.close()

    app = FastAPI(title="watchtower", version=__version__, lifespan=lifespan)
    problems.install(app)
    app.router.routes += [*ingest_routes(tower), metrics_route(tower)]
    for routes in (job_routes, mute_routes, incident_routes, health_routes):
        app.include_router(routes(tower))
    return app


async def tick_forever(tower: Tower, notifier: Notifier, tick_s: float = TICK_S) -> None:
    """Let the tower look at its jobs until cancelled; only a look that worked feeds the watchdog.

    One job that cannot be judged is no failed look: starting afresh would not help the others.
    """
    while True:
        try:
            tower.tick()
            notifier.alive(tower.clock.now(), say_state(tower))
        except Exception:  # /readyz tells that the ticks stopped; the next one may work again
            log.exception("a look at the jobs failed")
        await asyncio.sleep(tick_s)


def serve(config: TowerConfig) -> None:
    """Run a tower until SIGTERM or SIGINT. Raises StoreError, OSError when it cannot start."""
    store = SqliteStore(Path(config.data_dir) / "watchtower.db", config.retention)
    try:
        tower = Tower(config.policy, store, store.recall(), Clock())
        listener = _listen(config.host, config.port)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"http://{shown}:{port}", flush=True)
        log.info("watchtower %s, data in %s", __version__, config.data_dir)
        server = uvicorn.Server(
            uvicorn.Config(
                make_app(tower),
                loop="uvloop",
                http="httptools",
                access_log=False,
                log_config=None,
                timeout_graceful_shutdown=STOP_S,
            )
        )
        # The server raises it once more when it has stopped; the store is still to be closed then.
        signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
        server.run(sockets=[listener])
    finally:
        store.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    listener.listen(1024)
    return listener
