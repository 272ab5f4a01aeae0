"""The composition root of the tower: the only file that imports every part."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp

from watchtower import __version__
from watchtower.access.renewal import Renewal
from watchtower.access.sessions import keep_key, make_key
from watchtower.access.slack_signature import SlackSignatures
from watchtower.access.tls import Certificate, TlsError, is_loopback
from watchtower.access.tokens import Scope, TokenBook, TokenError
from watchtower.alerts.destinations import make_destinations
from watchtower.alerts.labels import NO_LINKS, AlertLinks, make_links
from watchtower.alerts.notifier import AlertNotifier
from watchtower.alerts.settings import AlertSettings, read_secret
from watchtower.api import problems
from watchtower.api.browsers import find_hosts
from watchtower.api.connections import ConnectionLimit, connection_class, raise_descriptor_limit
from watchtower.api.front import Front
from watchtower.api.incidents import document_routes, incident_routes, outage_routes
from watchtower.api.ingest import Ingest
from watchtower.api.jobs import RawJobPaths, examination_routes, job_routes
from watchtower.api.metrics import metrics_route
from watchtower.api.middleware import BodyLimit, Compression, EntityTags
from watchtower.api.nodes import health_routes, node_routes
from watchtower.api.openapi import describe_api
from watchtower.api.people import feedback_routes, silence_routes
from watchtower.api.ranks import rank_routes
from watchtower.api.reference import reference_routes
from watchtower.api.security import AccessRules, Guard, Refusals
from watchtower.api.slack import SlackAnswers, SlackCommands
from watchtower.api.standby import make_standby
from watchtower.api.visitors import People, TrustedUsers, Visitors
from watchtower.config import TowerConfig
from watchtower.diagnoser.process import DiagnoserProcess
from watchtower.incidents.incident import ShadowMode
from watchtower.service.daemon import Notifier, put_off_full_collections
from watchtower.service.settings import Attempts
from watchtower.store.opening import open_store
from watchtower.store.protocol import Store
from watchtower.store.values import StartupState
from watchtower.tower.clock import Clock
from watchtower.tower.diagnosis_runner import DiagnosisRunner
from watchtower.tower.health import describe_state
from watchtower.tower.ownership import Ownership, Role
from watchtower.tower.recording import (
    Header,
    Record,
    RecordedClock,
    Recorder,
    RecordingError,
    unrecorded,
)
from watchtower.tower.tower import Tower
from watchtower.ui.actions import Actions
from watchtower.ui.login import Logins
from watchtower.ui.pages import Pages
from watchtower.ui.routes import page_routes

log = logging.getLogger("watchtower")

TICK_S = 0.5
"""Seconds between two checks of all jobs: half the report interval, so that a decision is at most
half a second late."""

SWITCH_S = 0.0005
"""Python's switch interval in seconds. After it a computing thread, such as the one that prepares a
diagnosis, releases the interpreter to the event loop. With Python's default of 5 ms, every turn of
the loop could be 5 ms late.
"""

STOP_S = 1
"""Seconds for open connections to finish when the tower stops. Together with the store and the
recording, the stop takes less than 5 s."""


BACKLOG = 4096
"""Connections that wait to be accepted, as far as the kernel allows it (net.core.somaxconn). Each
node opens one for its dumps, all at the moment of a hang. One that finds no place is tried again
by its kernel after 1 s, 3 s and 7 s."""

OPEN_TO_ALL = (
    "there are no tokens: without the header of the proxy, everything is allowed to everyone who "
    "reaches the tower; let only the proxy reach it, or use tokens"
)
"""Warning about `user_header` without tokens."""

PageRoutes = Callable[[Tower, Pages], list[Route]]
"""Makes the routes of the tower's own pages."""


def make_app(
    tower: Tower,
    rules: AccessRules | None = None,
    links: AlertLinks = NO_LINKS,
    *,
    renewal: Renewal | None = None,
    alerts: AlertNotifier | None = None,
    pages: PageRoutes = page_routes,
    on_lost: Callable[[], None] = lambda: None,
) -> Front:
    """Return the ASGI application of one tower. Without rules every request is allowed.

    `pages` makes the routes of the tower's own pages. `on_lost` is called when another tower owns
    the jobs.
    """
    rules = rules or AccessRules()
    visitors, refusals = rules.visitors, rules.refusals
    shown = Pages(tower.clock.now, tower.count_changes)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if renewal is not None:
            renewal.start(asyncio.get_running_loop())
        async with _working(tower, alerts, on_lost):
            yield
        await tower.close()

    # docs_url: the framework's page would load its scripts from another site.
    app = FastAPI(
        title="watchtower", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    guard = partial(Guard, rules=rules, public_url=links.public_url, show_error=shown.show_error)
    app.add_middleware(EntityTags)
    app.add_middleware(Compression)  # outside: an unchanged answer is not compressed
    app.add_middleware(BodyLimit)
    app.add_middleware(guard)
    app.add_middleware(RawJobPaths)
    problems.install(app)
    describe_api(app, needs_token=bool(visitors.book))
    ingest = Ingest(tower, rules)
    metrics = metrics_route(tower, refusals, links.public_url, ingest.durations, alerts)
    app.router.routes += [metrics, *reference_routes(app), *pages(tower, shown)]
    app.router.routes += Logins(shown, visitors, refusals).routes()
    app.router.routes += Actions(tower, shown).routes()
    app.router.routes += rank_routes(tower)  # before those of jobs, which match more
    for linking in (examination_routes, job_routes, incident_routes, document_routes):
        app.router.routes += linking(tower, links).routes
    for routes in (node_routes, silence_routes, feedback_routes, outage_routes, health_routes):
        app.router.routes += routes(tower).routes
    return Front(ingest, app, guard, shown.find_unchanged)


@contextlib.asynccontextmanager
async def _working(
    tower: Tower, alerts: AlertNotifier | None, on_lost: Callable[[], None]
) -> AsyncIterator[None]:
    """Check the jobs, send alerts and renew the lease until the end."""
    notifier, ownership = Notifier(), tower.ownership
    tasks = [
        asyncio.create_task(tick_forever(tower, notifier)),
        asyncio.create_task(ownership.hold(on_lost)),
    ]
    if alerts is not None:
        alerts.start(
            lambda subject: tower.silences.find(subject) is not None,
            ownership.may_act,
            tower.must_wait,
        )
    yield
    if ownership.role is not Role.STANDBY:  # else the process goes on
        notifier.stopping()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if alerts is not None:
        await alerts.close()


async def tick_forever(tower: Tower, notifier: Notifier, tick_s: float = TICK_S) -> None:
    """Check all jobs every `tick_s` seconds until cancelled, or another tower owns them.

    Only a successful check notifies systemd's watchdog. A failed check of one job does not count as
    a failure: a restart would not help the other jobs.
    """
    while await tower.ownership.may_act():
        try:
            tower.tick()
            notifier.alive(tower.clock.now(), describe_state(tower))
        except Exception:  # /readyz reports missing checks; the next one may work again
            log.exception("the check of all jobs failed")
        await asyncio.sleep(tick_s)


def check(config: TowerConfig) -> list[str]:
    """Check what a start of the tower reads: tokens, certificate, secrets of alerts.

    Returns warnings. Raises ConfigError with all errors.
    """
    attempts, alerts = Attempts(TokenError, TlsError, OSError), config.alerts
    book = attempts.make(lambda: TokenBook(config.token_files, os.environ), TokenBook({}, {}))
    others: tuple[Callable[[], object], ...] = (
        lambda: config.tls_cert and Certificate(config.tls_cert, config.tls_key),
        lambda: make_destinations(alerts),
        lambda: make_links(alerts, config.public_url),
        lambda: read_secret("slack_signing_secret_file", alerts.slack_signing_secret_file),
        lambda: read_secret("database_password_file", config.database_password_file),
    )
    for other in others:
        attempts.make(other, None)
    attempts.check()
    return find_warnings(config, book)


def serve(config: TowerConfig) -> None:
    """Run a tower until SIGTERM or SIGINT.

    If another tower owns the jobs of its database, it is on standby until it is the owner, and
    again when another one has taken over. Raises StoreError, TokenError, TlsError or OSError if it
    cannot start.
    """
    connections = raise_descriptor_limit()
    book = TokenBook(config.token_files, os.environ)
    certificate = Certificate(config.tls_cert, config.tls_key) if config.tls_cert else None
    password = read_secret("database_password_file", config.database_password_file)
    where = config.database or str(Path(config.data_dir) / "watchtower.db")
    store = open_store(where, config.retention, password, standby=True)
    try:
        listener = _listen(config.host, config.port)
        url = _url_of(config, listener)
        print(url, flush=True)
        log.info("watchtower %s, data in %s", __version__, config.database or config.data_dir)
        for warning in find_warnings(config, book):
            log.warning("%s", warning)
        access = _Access(book, certificate, connections)
        while _is_owner(config, store, listener, url, access) and _watch(
            config, store, listener, access
        ):
            store.close()
            store = open_store(where, config.retention, password, standby=True)
    finally:
        store.close()


def _is_owner(
    config: TowerConfig, store: Store, listener: socket.socket, url: str, access: _Access
) -> bool:
    """Wait on standby until this tower is the owner. Return False if a signal ended it before."""
    lease, ownership = store.lease, Ownership(store)
    if lease is None:
        return True
    lease.url = url.replace("//0.0.0.0:", f"//{socket.gethostname()}:")
    if lease.is_held:
        return True
    log.warning("%s", ownership.describe())
    server = uvicorn.Server(
        _server_settings(
            config,
            make_standby(ownership, lambda: _stop(server)),
            connection_class(_limit_connections(access, Refusals())),
        )
    )
    server.config.load()
    is_ended = False

    def end(*_: object) -> None:
        nonlocal is_ended
        is_ended = True
        _stop(server)

    signal.signal(signal.SIGTERM, end)
    server.run(sockets=[listener.dup()])
    if is_ended:
        return False
    log.warning("this tower is the owner of the jobs now, with epoch %d", lease.epoch)
    return True


def _watch(config: TowerConfig, store: Store, listener: socket.socket, access: _Access) -> bool:
    """Run a tower. Return whether it ended because another one has taken over."""
    tower: Tower | None = None
    recorder: Recorder | None = None
    try:
        shadow = ShadowMode(
            everything=config.alerts.shadow, causes=frozenset(config.alerts.shadow_causes)
        )
        startup, clock = store.recall(), Clock()
        startup = replace(startup, incidents=shadow.settle_all(startup.incidents))
        recorder = _begin_recording(config, shadow, startup, clock)
        record = recorder.note if recorder is not None else unrecorded
        clock = RecordedClock(clock, record)
        destinations = make_destinations(config.alerts)
        links = make_links(config.alerts, config.public_url)
        alerts = AlertNotifier(destinations, store, clock, links, is_drill=config.alerts.drill)
        alerts.recall(startup.alerts, startup.incidents)
        tower = Tower(
            config.policy,
            store,
            startup,
            clock,
            run_in_processes,
            (alerts,),
            shadow,
            record,
        )
        tower.advisories_off = frozenset(config.advisories_off)
        if destinations:
            log.info("alerts are sent to: %s", ", ".join(each.name for each in destinations))
            if not config.public_url:
                log.warning("alerts have no link to the verdict: set `public_url` in [tower]")
        if text := shadow.describe():
            log.warning("%s", text)
        server = _make_server(config, tower, access, alerts, links)
        put_off_full_collections()
        sys.setswitchinterval(SWITCH_S)
        # uvicorn raises SIGTERM again after it has stopped. The store must still be closed then.
        signal.signal(signal.SIGTERM, lambda *_: _stop(server))
        server.run(sockets=[listener.dup()])
    finally:
        try:
            store.close()
            if tower is not None:
                tower.store_writer.report_lost()
        finally:
            if recorder is not None:
                recorder.close(Clock().now())
    return store.lease is not None and bool(store.lease.lost)


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True


def _url_of(config: TowerConfig, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if config.tls_cert else 'http'}://{shown}:{port}"


def _begin_recording(
    config: TowerConfig, shadow: ShadowMode, startup: StartupState, clock: Clock
) -> Recorder | None:
    if not config.record:
        return None
    now, wall = clock.now(), clock.wall()
    header = Header(policy=config.policy, shadow=shadow, startup=startup, now=now, wall=wall)
    try:
        recorder = Recorder(Path(config.record), header)
    except RecordingError as error:  # a tower that watches is worth more than its recording
        log.error("%s; nothing is recorded", error)
        return None
    log.info("every input is recorded to %s", recorder.path)
    return recorder


def run_in_processes(clock: Clock, record: Record) -> DiagnosisRunner:
    """Run the diagnoses of a tower in processes of their own."""
    return DiagnosisRunner(clock, record, DiagnoserProcess)


def find_warnings(config: TowerConfig, book: TokenBook) -> list[str]:
    """Return warnings about a configuration that is allowed but probably a mistake."""
    if not book:
        return [OPEN_TO_ALL] if config.pages.user_header else []
    warnings = []
    if not config.tls_cert and not is_loopback(config.host):
        warnings.append(
            "tokens are sent over the network without encryption: set `tls_cert` and `tls_key`"
        )
    if Scope.AGENT not in book.scopes:
        warnings.append("there is no token for agents: no agent can report")
    if not book.scopes & {Scope.READER, Scope.OPERATOR}:
        warnings.append("there is no token for readers or operators: no client can read verdicts")
    return warnings


def make_people(config: TowerConfig, key: bytes = b"") -> People:
    """Return how persons get rights. `key` signs their sessions.

    Without one, it is in the data folder.
    """
    pages = config.pages
    scope = Scope(pages.user_scope)
    return People(
        key=key or keep_key(Path(config.data_dir)),
        session_s=pages.session_hours * 3600,
        trusted=TrustedUsers(pages.user_header, pages.trusted_proxies, scope),
        is_secure=config.is_secure,
    )


@dataclass(frozen=True, slots=True)
class _Access:
    """Who may connect: what does not change when a tower becomes the owner."""

    book: TokenBook
    certificate: Certificate | None
    connections: int


def _make_server(
    config: TowerConfig,
    tower: Tower,
    access: _Access,
    alerts: AlertNotifier,
    links: AlertLinks,
) -> uvicorn.Server:
    refusals = Refusals()
    limit = _limit_connections(access, refusals)
    renewal = Renewal(access.book, access.certificate)
    key = bytes.fromhex(tower.store_writer.store.shared_key("session", make_key().hex()))
    rules = AccessRules(
        visitors=Visitors(access.book, make_people(config, key)),
        refusals=refusals,
        hosts=find_hosts(config.host, config.public_url, config.allowed_hosts),
    )
    pages = partial(page_routes, links=links, settings=config.pages)
    app = make_app(
        tower,
        rules,
        links,
        renewal=renewal,
        alerts=alerts,
        pages=pages,
        on_lost=lambda: _stop(server),
    )
    settings = _server_settings(
        config,
        add_slack_commands(app, tower, config.alerts, links, refusals),
        connection_class(limit, app.direct),
    )
    settings.load()
    renewal.context = settings.ssl
    server = uvicorn.Server(settings)
    return server


def _limit_connections(access: _Access, refusals: Refusals) -> ConnectionLimit:
    return ConnectionLimit(
        access.connections,
        on_refusal=lambda address: refusals.add("too_many_connections", address, time.monotonic()),
    )


def _server_settings(config: TowerConfig, app: ASGIApp, http: type[Any]) -> uvicorn.Config:
    # Below this level uvicorn logs a line for every request that is not valid HTTP.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=http,
        ws="none",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        ssl_certfile=config.tls_cert or None,
        ssl_keyfile=config.tls_key or None,
        timeout_graceful_shutdown=STOP_S,
        backlog=BACKLOG,
    )


def add_slack_commands(
    app: ASGIApp, tower: Tower, settings: AlertSettings, links: AlertLinks, refusals: Refusals
) -> ASGIApp:
    """Return an application that also answers commands of Slack, if there is a signing secret.

    Raises ConfigError.
    """
    secret = read_secret("slack_signing_secret_file", settings.slack_signing_secret_file)
    if not secret:
        return app
    answers = SlackAnswers(tower, links, frozenset(settings.slack_ack_users))
    return SlackCommands(app, answers, SlackSignatures(secret), refusals)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    listener.listen(BACKLOG)
    return listener
