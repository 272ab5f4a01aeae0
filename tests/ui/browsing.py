"""Requests to the application of a tower, on the event loop of the test, and what pages contain."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html.parser import HTMLParser

from starlette.types import ASGIApp, Message

PAGE = re.compile(r"<(!doctype|html)", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: str

    @property
    def etag(self) -> str:
        return self.headers["etag"]


async def get(app: ASGIApp, path: str, **headers: str) -> Answer:
    """Return the answer to a GET. Names of headers have underscores."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    raw, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost"), *pairs],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }
    await app(scope, receive, send)
    start = next(each for each in sent if each["type"] == "http.response.start")
    body = b"".join(each.get("body", b"") for each in sent if each["type"] == "http.response.body")
    known = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], known, body.decode())


class Page(HTMLParser):
    """The elements, addresses and texts of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.ids: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if attributes.get("id"):
            self.ids.append(attributes["id"] or "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open, f"</{tag}> closes nothing"
            assert self._open.pop() == tag
        if tag not in INLINE:
            self.texts.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    @property
    def addresses(self) -> list[str]:
        names = ("href", "src", "action", "srcset", "poster", "data", "formaction")
        return [
            value or ""
            for _, attributes in self.tags
            for name, value in attributes.items()
            if name in names
        ]


INLINE = frozenset({"a", "b", "code", "span", "strong", "time"})

VOID = frozenset({"meta", "link", "input", "br", "hr", "img", "rect"})


def check_page(answer: Answer, outside: tuple[str, ...] = ()) -> Page:
    """Return a page that is well-formed, contains no code and leads nowhere but to the tower."""
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = Page(answer.body)
    assert len(page.ids) == len(set(page.ids)), "an id is used twice"
    for tag, attributes in page.tags:
        assert tag != "style"
        assert tag != "script" or attributes.get("src")
        for name in attributes:
            assert name != "style"
            assert not name.startswith("on")
    for address in page.addresses:
        if address not in outside:
            assert not re.match(r"[a-z][a-z0-9+.-]*:|//|\\", address, re.IGNORECASE), address
    return page
