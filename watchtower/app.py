"""The composition root of the tower: the one file that knows every part."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from watchtower import __version__
from watchtower.access.renewal import Renewal
from watchtower.access.scopes import Scope, TokenBook
from watchtower.access.tls import Certificate, is_loopback
from watchtower.api import problems
from watchtower.api.agents import agent_routes
from watchtower.api.browsers import find_hosts
from watchtower.api.connections import ConnectionLimit, connection_class, raise_descriptor_limit
from watchtower.api.front import Front
from watchtower.api.health import health_routes
from watchtower.api.incidents import incident_routes
from watchtower.api.ingest import ingest_routes
from watchtower.api.job_paths import RawJobPaths
from watchtower.api.jobs import job_routes
from watchtower.api.metrics import metrics_route
from watchtower.api.mutes import mute_routes
from watchtower.api.reference import reference_routes
from watchtower.api.security import Guard, Refusals
from watchtower.config import TowerConfig
from watchtower.diagnoser.process import DiagnoserProcess
from watchtower.garbage import put_off_full_collections
from watchtower.store.sqlite import SqliteStore
from watchtower.systemd import Notifier
from watchtower.tower.clock import Clock
from watchtower.tower.health import say_state
from watchtower.tower.tower import Tower

log = logging.getLogger("watchtower")

TICK_S = 0.5
"""Twice per report interval: adds at most half a second to any decision."""

SWITCH_S = 0.0005
"""A thread that computes, such as the one that prepares a diagnosis, gives up the interpreter
after this long when the event loop waits for it. Python's own 5 ms would come with each turn of the
loop.
"""

STOP_S = 1
"""Open connections get this long when the tower stops; with the store it stays under 3 s."""


def make_app(
    tower: Tower,
    book: TokenBook | None = None,
    refusals: Refusals | None = None,
    renewal: Renewal | None = None,
    public_url: str = "",
    hosts: frozenset[str] | None = None,
) -> Front:
    """Put the routes of one tower together; without a book of tokens every request is allowed.

    With `hosts`, the names of the tower, requests of pages of other sites are not.
    """
    refusals = refusals or Refusals()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if renewal is not None:
            renewal.start(asyncio.get_running_loop())
        notifier = Notifier()
        ticking = asyncio.create_task(tick_forever(tower, notifier))
        yield
        notifier.stopping()
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        await tower.close()

    # docs_url: the framework's own page loads its scripts from elsewhere.
    app = FastAPI(
        title="watchtower", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    guard = partial(
        Guard,
        book=book or TokenBook({}, {}),
        refusals=refusals,
        hosts=hosts,
        public_url=public_url,
    )
    app.add_middleware(guard)
    app.add_middleware(RawJobPaths)
    problems.install(app)
    app.router.routes += [metrics_route(tower, refusals, public_url), *reference_routes(app)]
    for routes in (job_routes, agent_routes, mute_routes, incident_routes, health_routes):
        app.router.routes += routes(tower).routes
    return Front(ingest_routes(tower, refusals), app, guard)


async def tick_forever(tower: Tower, notifier: Notifier, tick_s: float = TICK_S) -> None:
    """Let the tower check its jobs until cancelled. Only a check that worked feeds the watchdog.

    A job that cannot be judged is not a failed check: a restart would not help the others.
    """
    while True:
        try:
            tower.tick()
            notifier.alive(tower.clock.now(), say_state(tower))
        except Exception:  # /readyz tells that the ticks stopped; the next one may work again
            log.exception("a check of the jobs failed")
        await asyncio.sleep(tick_s)


def serve(config: TowerConfig) -> None:
    """Run a tower until SIGTERM or SIGINT.

    Raises StoreError, TokenError, TlsError, OSError when it cannot start.
    """
    connections = raise_descriptor_limit()
    book = TokenBook(config.token_files, os.environ)
    certificate = Certificate(config.tls_cert, config.tls_key) if config.tls_cert else None
    store = SqliteStore(Path(config.data_dir) / "watchtower.db", config.retention)
    tower: Tower | None = None
    try:
        tower = Tower(config.policy, store, store.recall(), Clock(), DiagnoserProcess)
        listener = _listen(config.host, config.port)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"{'https' if certificate else 'http'}://{shown}:{port}", flush=True)
        log.info("watchtower %s, data in %s", __version__, config.data_dir)
        for doubt in find_doubts(config, book):
            log.warning("%s", doubt)
        server = _make_server(config, tower, book, certificate, connections)
        put_off_full_collections()
        sys.setswitchinterval(SWITCH_S)
        # The server raises it once more when it has stopped; the store is still to be closed then.
        signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
        server.run(sockets=[listener])
    finally:
        store.close()
        if tower is not None:
            tower.store_writer.tell_lost()


def find_doubts(config: TowerConfig, book: TokenBook) -> list[str]:
    """Say what is allowed, but hardly meant."""
    if not book:
        return []
    doubts = []
    if not config.tls_cert and not is_loopback(config.host):
        doubts.append("tokens cross the network readable by others: set `tls_cert` and `tls_key`")
    if Scope.AGENT not in book.scopes:
        doubts.append("there is no token for agents: none can report")
    if not book.scopes & {Scope.READER, Scope.OPERATOR}:
        doubts.append("there is no token for readers or operators: nobody can ask")
    return doubts


def _make_server(
    config: TowerConfig,
    tower: Tower,
    book: TokenBook,
    certificate: Certificate | None,
    connections: int,
) -> uvicorn.Server:
    refusals = Refusals()
    limit = ConnectionLimit(
        connections,
        on_refusal=lambda address: refusals.add("too_many_connections", address, time.monotonic()),
    )
    # It tells of every request that is no HTTP, one by one.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    renewal = Renewal(book, certificate)
    hosts = find_hosts(config.host, config.public_url, config.allowed_hosts)
    settings = uvicorn.Config(
        make_app(tower, book, refusals, renewal, config.public_url, hosts),
        loop="uvloop",
        http=connection_class(limit),
        ws="none",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        ssl_certfile=config.tls_cert or None,
        ssl_keyfile=config.tls_key or None,
        timeout_graceful_shutdown=STOP_S,
    )
    settings.load()
    renewal.context = settings.ssl
    return uvicorn.Server(settings)


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
