"""The pages of a real hung job in a real Chromium: a rank is stopped while they are open."""

from __future__ import annotations

import contextlib
import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest

from tests.system.small_jobs import FAST, beside
from tests.system.ui.browser import DESKTOP, PHONE, Visit, visiting
from tests.waiting import wait_until
from watchtower.drills.job import TrainingJob
from watchtower.drills.launching import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(400)]


JOB = "llama <img src=x onerror=window.wasRun=1>"
"""A user chooses the name of a job."""

STOPPED = 2
"""The rank that hangs. In a ring of four it is the first one that the others wait for."""

QUIET_S = 5.0
"""Seconds in which a visible page would ask twice."""


@dataclass
class Story:
    """A hung job, and what pages showed that were open before."""

    url: str
    job: TrainingJob
    incident: str
    was_reloaded: bool
    shown: dict[str, str]
    """Text of each page that was open, by path."""
    errors: list[str]
    foreign: list[str]

    @property
    def page(self) -> str:
        return f"/incidents/{self.incident}"

    def detail(self) -> dict[str, Any]:
        return ask(self.url, f"/api/v1/incidents/{self.incident}")


def ask(url: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}{path}", timeout=30) as reply:
        return json.load(reply)


@pytest.fixture(scope="module")
def story(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Open pages, then stop a rank, and wait until the pages show it."""
    folder = tmp_path_factory.mktemp("story")
    environment = beside(folder, FAST, nodes=2)
    job = TrainingJob(JOB, "stdlib", Layout(ranks=4, nodes=2), folder)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(environment).tower_url
        job.launch({"step_s": 0.2, "jitter": 0.15})
        stack.callback(job.end)
        wait_until(lambda: has_stepped(job, url), "the job makes steps", 120)
        fleet = stack.enter_context(visiting(browser, url)).open("/")
        fleet.wait_for("llama")
        fleet.page.evaluate("window.wasNotReloaded = true")
        job.signal(STOPPED, signal.SIGSTOP)
        fleet.wait_for(f"Rank {STOPPED} ")
        wait_until(lambda: find_incident(url), "the incident opens", 120)
        yield Story(
            url=url,
            job=job,
            incident=find_incident(url),
            was_reloaded=not fleet.page.evaluate("window.wasNotReloaded === true"),
            shown={"/": fleet.text()},
            errors=fleet.errors,
            foreign=fleet.foreign,
        )


def has_stepped(job: TrainingJob, url: str) -> bool:
    job.poll()
    items = ask(url, "/api/v1/jobs")["items"]
    return any((item["step"] or 0) >= 10 for item in items)


def find_incident(url: str) -> str:
    items = ask(url, "/api/v1/incidents")["items"]
    return items[0]["id"] if items else ""


@pytest.fixture
def visit(browser: Any, story: Story) -> Iterator[Visit]:
    with visiting(browser, story.url) as visit:
        yield visit
        assert visit.foreign == [], "a page requested something outside of the tower"
        assert visit.errors == []


def test_an_open_page_shows_the_verdict_without_a_reload(story):
    assert not story.was_reloaded
    assert f"Rank {STOPPED}" in story.shown["/"]
    assert (story.errors, story.foreign) == ([], [])


def paths_of(story: Story) -> list[str]:
    return ["/", f"/jobs/{quote(JOB, safe='')}", "/nodes", "/incidents", story.page]


def test_no_link_is_dead(story, visit):
    linked = set()
    for path in paths_of(story):
        visit.open(path)
        links = visit.page.locator("a[href]").evaluate_all(
            "all => all.map(a => new URL(a.getAttribute(`href`), document.baseURI).href)"
        )
        linked |= {link.partition("#")[0] for link in links}
    assert all(link.startswith(f"{story.url}/") for link in linked), linked
    assert {f"{story.url}{path}" for path in paths_of(story)} <= linked
    dead = [link for link in linked if not visit.page.request.get(link).ok]
    assert dead == []


def test_pages_are_accessible_in_both_schemes_and_never_scroll_sideways(story, visit):
    for path in paths_of(story):
        visit.open(path)
        visit.page.locator("details").evaluate_all("all => all.forEach(each => each.open = true)")
        for scheme in ("light", "dark"):
            visit.page.emulate_media(color_scheme=scheme)
            for size in (PHONE, DESKTOP):
                visit.page.set_viewport_size(size)
                assert visit.find_problems() == [], (path, scheme, size)
                assert visit.fits(), (path, size)


def test_a_planted_problem_is_found(visit):
    visit.open("/nodes")
    visit.page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    (found,) = visit.find_problems()
    assert found.startswith("button-name")


def test_a_person_without_javascript_reads_everything(browser, story):
    with visiting(browser, story.url, java_script_enabled=False) as visit:
        visit.open(story.page)
        text = visit.text()
        assert f"Rank {STOPPED}" in text
        assert "Acknowledge" in text
        assert visit.open("/").text().count("llama") >= 1


def test_markup_in_a_name_stays_text(story, visit):
    for path in paths_of(story):
        visit.open(path)
        assert "<img src=x onerror=window.wasRun=1>" in visit.text(), path
        assert visit.page.evaluate("window.wasRun") is None
        assert visit.page.locator("img[src=x]").count() == 0


def test_a_hidden_page_stops_asking_and_starts_again(story, visit):
    visit.open("/")
    asked = len(visit.requests)
    wait_until(lambda: requests_after(visit, asked), "the page asks again")
    hide(visit, True)
    asked = len(visit.requests)
    visit.page.wait_for_timeout(QUIET_S * 1000)
    assert visit.requests[asked:] == []
    hide(visit, False)
    wait_until(lambda: requests_after(visit, asked), "the page asks at once")


def requests_after(visit: Visit, number: int) -> list[str]:
    visit.page.wait_for_timeout(50)  # lets playwright receive events
    return visit.requests[number:]


def hide(visit: Visit, hidden: bool) -> None:
    """The event of a browser when another tab is chosen. Headless, no tab is ever hidden."""
    visit.page.evaluate(
        """hidden => {
            Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }""",
        hidden,
    )


def test_with_the_keyboard_alone_an_incident_is_acknowledged(story, visit):
    visit.open(story.page)
    keyboard = visit.page.keyboard
    press_until(visit, "Tab", "document.activeElement.closest('#ack summary') !== null")
    keyboard.press("Enter")
    press_until(visit, "Tab", "document.activeElement.name === 'by'")
    keyboard.type("bob")
    press_until(visit, "Tab", "document.activeElement.name === 'note'")
    keyboard.type("<b>looking at NFS</b>")
    press_until(visit, "Tab", "document.activeElement.tagName === 'BUTTON'")
    keyboard.press("Enter")
    visit.wait_for("Acknowledged by bob")
    ack = story.detail()["ack"]
    assert (ack["by"], ack["note"]) == ("bob", "<b>looking at NFS</b>")
    assert visit.page.url == f"{story.url}{story.page}"


def press_until(visit: Visit, key: str, condition: str) -> None:
    for _ in range(60):
        visit.page.keyboard.press(key)
        if visit.page.evaluate(condition):
            return
    pytest.fail(f"{key} never reached {condition}")


def test_without_javascript_a_click_silences_the_job(browser, story):
    with visiting(browser, story.url, java_script_enabled=False) as visit:
        visit.open(story.page)
        visit.page.locator("#silence summary").click()
        visit.page.locator("#silence [name=by]").fill("alice")
        visit.page.locator("#silence select[name=for_s]").select_option("1800")
        visit.page.locator("#silence button").click()
        visit.wait_for("Silenced until")
    silence = story.detail()["silence"]
    assert (silence["job"], silence["by"]) == (JOB, "alice")


def test_what_a_person_types_survives_an_update(story, visit):
    visit.open(story.page)
    visit.page.locator("#ack summary").click()
    visit.page.locator("#ack [name=note]").fill("half a sentence")
    before = visit.page.locator("#incident").inner_text()
    request = urllib.request.Request(
        f"{story.url}/api/v1/incidents/{story.incident}/ack",
        json.dumps({"by": f"carol {time.time()}"}).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=30).close()
    visit.wait_for("Acknowledged by carol")
    assert visit.page.locator("#incident").inner_text() != before
    assert visit.page.locator("#ack [name=note]").input_value() == "half a sentence"
    assert visit.page.locator("#ack").get_attribute("open") is not None


def test_after_the_job_was_killed_the_page_still_shows_what_was_true(story, visit):
    visit.open(story.page)
    story.job.signal_all(signal.SIGKILL)

    def is_over() -> bool:
        story.job.poll()
        return story.detail()["closed_at"] is not None

    wait_until(is_over, "the incident is over", 120)
    visit.page.locator("#incident.over").wait_for()
    assert f"Rank {STOPPED}" in visit.text()
    assert visit.find_problems() == []
