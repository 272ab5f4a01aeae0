"""What a tower on standby answers: that it is alive, who owns the jobs, and when to ask again.

It knows no jobs, so that it needs no token.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
from collections.abc import AsyncIterator, Callable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from watchtower.access.towers import STANDBY
from watchtower.api import metric_table as table
from watchtower.api.job_metrics import family_of, single
from watchtower.api.problems import problem
from watchtower.service.daemon import Notifier
from watchtower.tower.ownership import Ownership, Role

AGAIN_S = 1
"""Seconds after which a client is asked to try again. The owner may have changed by then."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>watchtower: on standby</title></head>
<body><h1>This tower is on standby</h1><p>{text}</p>{link}</body></html>
"""


def make_standby(ownership: Ownership, on_owner: Callable[[], None]) -> Starlette:
    """Return the application of a tower on standby. It calls `on_owner` when it is the owner."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(_claim(ownership, on_owner)),
            asyncio.create_task(_notify(ownership)),
        ]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def get_healthz(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def get_readyz(_: Request) -> Response:
        state = {"ready": False, "role": ownership.role.value, "detail": ownership.describe()}
        return JSONResponse(state, 503)

    async def get_metrics(_: Request) -> Response:
        body = generate_latest(_Families(ownership))
        return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await _refuse(scope, ownership)(scope, receive, send)

    routes = [
        Route("/healthz", get_healthz),
        Route("/readyz", get_readyz),
        Route("/metrics", get_metrics),
        Mount("/", app=refuse),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def collect_role(ownership: Ownership) -> Iterator[Metric]:
    """Yield the metrics about the lease of a tower."""
    family, lease = family_of(table.ROLE), ownership.lease
    for role in Role:
        family.add_metric([role.value], float(role is ownership.role))
    yield family
    yield single(table.LEASE_EPOCH, lease.epoch if lease else 0)
    yield single(table.LEASE_AGE, lease.age_s() if lease and lease.epoch else 0.0)
    yield single(table.STANDBY_TOWERS, lease.standbys if lease else 0)


class _Families(Collector):
    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership

    def collect(self) -> Iterator[Metric]:
        yield from collect_role(self._ownership)


async def _claim(ownership: Ownership, on_owner: Callable[[], None]) -> None:
    await ownership.claim()
    on_owner()


async def _notify(ownership: Ownership) -> None:
    notifier, loop = Notifier(), asyncio.get_running_loop()
    while True:
        notifier.alive(loop.time(), ownership.describe())
        await asyncio.sleep(AGAIN_S)


def _refuse(scope: Scope, ownership: Ownership) -> Response:
    owner = ownership.lease.owner_url if ownership.lease is not None else ""
    accepts = dict(scope["headers"]).get(b"accept", b"")
    if scope["method"] in ("GET", "HEAD") and b"text/html" in accepts:
        address = html.escape(f"{owner}{scope['path']}")
        link = f'<p>Open <a href="{address}">{address}</a></p>' if owner else ""
        page = _PAGE.format(text=html.escape(ownership.describe()), link=link)
        response = Response(page, 503, {"Refresh": "2"}, media_type="text/html")
        response.headers["Content-Security-Policy"] = "default-src 'none'"
    else:
        response = problem(503, ownership.describe(), STANDBY)
    response.headers["Retry-After"] = str(AGAIN_S)
    return response
