"""A tower in process with tokens, and a browser of a person."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.testclient import TestClient

from tests.diagnosers import in_thread
from tests.shared_parts import share_parts
from watchtower.access.tokens import TokenBook
from watchtower.api.security import AccessRules
from watchtower.api.visitors import People, Visitors
from watchtower.app import make_app
from watchtower.incidents.incident import Incident
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower
from watchtower.wire.verdict import Cause, Status, Verdict

share_parts()

TOKENS = {scope: f"{scope}-token-of-the-tests" for scope in ("agent", "reader", "operator")}
ORIGIN = "http://testserver"
OWN = {"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
OPEN = {"Accept": "text/html,*/*;q=0.8", "Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}
LINK = OPEN | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
INCIDENT = "01KAPY3V7QH8M2T4W6Z9B1C5D7"


@contextmanager
def tower_for(
    folder: Path,
    *,
    with_tokens: bool = True,
    people: People | None = None,
    hosts: frozenset[str] | None = None,
) -> Iterator[TestClient]:
    """Return a client of a tower with one open incident."""
    store = SqliteStore(folder / "watchtower.db")
    save_incident(store)
    environment = {f"WATCHTOWER_{name.upper()}_TOKEN": token for name, token in TOKENS.items()}
    book = TokenBook({}, environment if with_tokens else {})
    tower = Tower(Policy(), store, store.recall(), Clock(), in_thread)
    app = make_app(tower, AccessRules(visitors=Visitors(book, people), hosts=hosts))
    with TestClient(app, base_url=ORIGIN, follow_redirects=False) as client:
        yield client
    store.close()


def save_incident(store: SqliteStore) -> None:
    now = Clock().wall()
    verdict = Verdict(
        job="llama",
        generation=1,
        status=Status.HUNG,
        summary="Rank 3 does not answer.",
        incident=INCIDENT,
        cause=Cause.UNKNOWN,
    )
    store.save_incident(
        Incident(
            id=INCIDENT,
            job="llama",
            generation=1,
            status=Status.HUNG,
            opened_at=now,
            updated_at=now,
            closed_at=None,
            verdict=verdict,
        )
    ).result()


def log_in(client: TestClient, scope: str = "operator", **fields: str):
    return client.post("/login", data={"token": TOKENS[scope], **fields}, headers=OWN)


def form_token_of(client: TestClient) -> str:
    """Return the form token in the page of the incident."""
    page = client.get(f"/incidents/{INCIDENT}", headers=OPEN).text
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found, page
    return found[1]
