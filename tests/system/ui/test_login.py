"""Login, links from other sites, and forged forms, in a real Chromium over TLS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import make_authority
from tests.system.ui.browser import PHONE, Visit, visiting
from tests.system.ui.prefix_proxy import prefix_proxy
from tests.towers import RunningTower, running_tower
from tests.ui.logins import INCIDENT, TOKENS, save_incident
from watchtower.api.visitors import SECURE_COOKIE
from watchtower.store.sqlite import SqliteStore

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PAGE = f"/incidents/{INCIDENT}"
CHAT = "https://chat.example/"


@dataclass
class Place:
    """A tower with TLS and tokens, and an open incident."""

    tower: RunningTower
    readers: Path

    @property
    def url(self) -> str:
        return self.tower.url


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    cert, key = make_authority(folder).sign("tower")
    words = ["--tls-cert", cert, "--tls-key", key, *prepare(folder)]
    with running_tower(folder, *words) as tower:
        yield Place(tower, folder / "readers")


def prepare(folder: Path) -> list[str]:
    """Make a store with an incident, and files of tokens; return the options that name them."""
    (folder / "data").mkdir()
    store = SqliteStore(folder / "data" / "watchtower.db")
    save_incident(store)
    store.close()
    words = []
    for scope, token in TOKENS.items():
        file = folder / f"{scope}s"
        file.touch(mode=0o600)
        file.write_text(f"{token}\n")
        words += [f"--{scope}-token-file", str(file)]
    return words


@pytest.fixture
def visit(browser: Any, place: Place) -> Iterator[Visit]:
    with visiting(browser, place.url, ignore_https_errors=True) as visit:
        yield visit
        assert visit.errors == []


def log_in(visit: Visit, scope: str = "operator") -> None:
    visit.page.get_by_label("Token").fill(TOKENS[scope])
    visit.page.get_by_role("button", name="Log in").click()


def show_chat(visit: Visit, body: str) -> None:
    """Open a page of another site with this content."""
    visit.page.route(f"{CHAT}**", lambda route: route.fulfill(content_type="text/html", body=body))
    visit.page.goto(CHAT)


def test_a_person_logs_in_acknowledges_and_logs_out(visit, place):
    visit.open(PAGE)
    assert visit.page.url == f"{place.url}/login?next={PAGE}"
    visit.page.get_by_label("Token").fill("a-token-that-nobody-was-given")
    visit.page.keyboard.press("Enter")
    visit.wait_for("does not know this token")
    log_in(visit)
    visit.wait_for("Rank 3 does not answer")
    assert visit.page.url == f"{place.url}{PAGE}"
    (cookie,) = visit.page.context.cookies()
    assert cookie["name"] == SECURE_COOKIE
    assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
    assert visit.page.evaluate("document.cookie") == ""
    visit.page.locator("#ack summary").click()
    visit.page.locator("#ack [name=by]").fill("bob")
    visit.page.locator("#ack button").click()
    visit.wait_for("Acknowledged by bob")
    visit.page.get_by_role("button", name="Log out").click()
    visit.page.get_by_label("Token").wait_for()
    assert visit.page.context.cookies() == []
    visit.page.go_back()
    visit.open(PAGE)
    assert "/login" in visit.page.url
    assert visit.foreign == []


def test_the_login_is_accessible_and_fits_a_phone(visit):
    visit.open("/login")
    log_in(visit, "agent")
    visit.wait_for("This token is for agents")
    for scheme in ("light", "dark"):
        visit.page.emulate_media(color_scheme=scheme)
        assert visit.find_problems() == [], scheme
    visit.page.set_viewport_size(PHONE)
    assert visit.fits()


@pytest.mark.parametrize("has_script", [True, False])
def test_a_link_in_a_chat_opens_the_incident(browser, place, has_script):
    options = {"ignore_https_errors": True, "java_script_enabled": has_script}
    with visiting(browser, place.url, **options) as visit:
        link = f'<a href="{place.url}{PAGE}">Open</a>'
        show_chat(visit, link)
        visit.page.get_by_text("Open").click()
        visit.page.get_by_label("Token").wait_for()
        log_in(visit, "reader")
        visit.wait_for("Rank 3 does not answer")
        assert visit.page.url == f"{place.url}{PAGE}"
        # The browser does not send the strict cookie with the link: the landing page does.
        show_chat(visit, link)
        visit.page.get_by_text("Open").click()
        visit.wait_for("Rank 3 does not answer")
        assert visit.page.url == f"{place.url}{PAGE}"


def test_a_form_of_another_site_changes_nothing(visit, place):
    visit.open(PAGE)
    log_in(visit)
    visit.wait_for("Rank 3 does not answer")
    show_chat(
        visit,
        f'<form method="post" action="{place.url}{PAGE}/silence"><input name="for_s" value="60">'
        "<button>Win</button></form>",
    )
    visit.page.get_by_text("Win").click()
    visit.page.wait_for_url(f"{place.url}/")
    visit.open(PAGE)
    visit.wait_for("Rank 3 does not answer")
    assert "Silenced until" not in visit.text()


def test_below_a_path_of_a_proxy_everything_works(browser, tmp_path):
    words = prepare(tmp_path)
    with (
        prefix_proxy() as proxy,
        running_tower(tmp_path, *words, "--public-url", proxy.url) as tower,
        visiting(browser, proxy.url) as visit,
    ):
        proxy.upstream = tower.address
        visit.open(PAGE)
        log_in(visit)
        visit.wait_for("Rank 3 does not answer")
        assert visit.page.url == f"{proxy.url}{PAGE}"
        visit.page.locator("#ack summary").click()
        visit.page.locator("#ack [name=by]").fill("bob")
        visit.page.locator("#ack button").click()
        visit.wait_for("Acknowledged by bob")
        visit.page.get_by_role("link", name="Nodes").click()
        visit.page.wait_for_url(f"{proxy.url}/nodes")
        visit.page.get_by_role("button", name="Log out").click()
        visit.page.get_by_label("Token").wait_for()
        assert visit.page.url.startswith(f"{proxy.url}/login")
        assert (visit.foreign, visit.errors) == ([], [])


def test_an_open_page_leads_to_the_login_when_its_session_ends(visit, place):
    visit.open(PAGE)
    log_in(visit, "reader")
    visit.wait_for("Rank 3 does not answer")
    before = place.readers.read_text()
    place.readers.write_text("another-token-of-readers\n")
    try:
        visit.page.get_by_label("Token").wait_for()
        assert visit.page.url == f"{place.url}/login?next={PAGE}"
    finally:
        place.readers.write_text(before)
