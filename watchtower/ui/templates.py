"""The templates of the pages with the filters that they use, and the static files.

Every value is escaped. Texts of processes are cleaned by the filter `line`, and our own sentences,
which may quote such texts in code spans, by `sentence`.
"""

from __future__ import annotations

from hashlib import blake2b
from importlib import resources
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from watchtower.ui.words import (
    cut_set,
    describe_job,
    describe_process,
    find_job_tone,
    find_tone,
    find_weight,
    format_name,
    name_frame,
    name_state,
    stamp,
    write_pace,
)
from watchtower.views.case_summary import STATE_WORDS, WaitBoxes
from watchtower.views.graph_svg import draw_graph
from watchtower.writing.cause_names import format_cause
from watchtower.writing.text import (
    capitalise,
    clean,
    clean_sentence,
    count_ranks,
    format_count,
    format_duration,
    format_percent,
)
from watchtower.writing.times import format_moment
from watchtower.writing.verdict_text import name_source

MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

FOREVER = "public, max-age=31536000, immutable"
"""For addresses with the version of the content, which the templates write."""


class StaticFiles:
    """All files of the folder `static`, read once."""

    def __init__(self) -> None:
        folder = resources.files("watchtower.ui") / "static"
        self._files = {
            each.name: each.read_bytes()
            for each in folder.iterdir()
            if each.name.rpartition(".")[2] in MEDIA_TYPES
        }
        self.version = _digest(b"".join(self._files[name] for name in sorted(self._files)))
        """Changes with any of the files."""

    def address(self, name: str) -> str:
        """Return the address of a file, relative to the root of the tower."""
        return f"static/{name}?v={_digest(self._files[name])}"

    def route(self) -> Route:
        """Return the route of all files. They contain nothing of any job."""
        return Route("/static/{name}", self._get)

    async def _get(self, request: Request) -> Response:
        name = request.path_params["name"]
        content = self._files.get(name)
        if content is None:
            raise HTTPException(404, f"there is no file {name!r}")
        is_versioned = request.query_params.get("v") == _digest(content)
        return Response(
            content,
            media_type=MEDIA_TYPES[name.rpartition(".")[2]],
            headers={"Cache-Control": FOREVER if is_versioned else "no-cache"},
        )


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


MAX_SENTENCE = 600
"""Most characters of one sentence on a page: longer than in chats, where it is 400."""


def make_environment() -> Environment:
    """Return the environment of all templates. A value that is missing is an error."""
    environment = Environment(
        loader=PackageLoader("watchtower.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {
        "line": clean,
        "sentence": mark_sentence,
        "step": mark_step,
        "moment": mark_moment,
        "clock": mark_clock,
        "cause": format_cause,
        "words": format_name,
        "upper_first": capitalise,
        "tone": find_tone,
        "stamp": stamp,
        "state": name_state,
        "job_tone": find_job_tone,
        "about": describe_job,
        "pace": write_pace,
        "duration": format_duration,
        "percent": format_percent,
        "ranks": count_ranks,
        "count": format_count,
        "rank_set": cut_set,
        "rank_state": STATE_WORDS.__getitem__,
        "frame": name_frame,
        "process": describe_process,
        "source": name_source,
        "weight": find_weight,
        "segment": quote_segment,
        "graph": mark_graph,
    }
    environment.filters.update(filters)
    return environment


def mark_graph(waits: WaitBoxes) -> Markup:
    """Return the picture of which rank waits for which. `draw_graph` escapes its texts."""
    return Markup(draw_graph(waits))


def mark_sentence(text: str, limit: int = MAX_SENTENCE) -> Markup:
    """Return one of our own sentences as HTML: its code spans become <code> elements."""
    return _mark(text, limit, Markup("<code>{}</code>"), Markup("<code>{}</code>"))


def mark_step(text: str, limit: int = MAX_SENTENCE) -> Markup:
    """Return a piece of advice as HTML. Each command in it has a button that copies it."""
    command = Markup(
        '<code>{}</code><button type="button" class="copy" data-copy aria-label="Copy the command">'
        "Copy</button>"
    )
    return _mark(capitalise(text), limit, Markup("<code>{}</code>"), command)


def _mark(text: str, limit: int, code: Markup, command: Markup) -> Markup:
    """Return a sentence with its code spans."""
    pieces = clean_sentence(text, limit).split("`")
    if len(pieces) % 2 == 0:  # cut within a span
        pieces = ["".join(pieces)]
    marked = [
        (command if _is_command(piece) else code).format(piece) if number % 2 else escape(piece)
        for number, piece in enumerate(pieces)
    ]
    return Markup("").join(marked)


def _is_command(code: str) -> bool:
    """Return whether a code span can be copied to a shell: it has arguments, and no `PATH` that a
    person must fill in."""
    return " " in code and "PATH" not in code.split()


def mark_moment(stamp: str | None, *, with_age: bool = True) -> Markup:
    """Return an RFC 3339 time as a <time> element. The script of the pages adds its age."""
    return _mark_time(stamp, format_moment(stamp or ""), " data-age" if with_age else "")


def mark_clock(stamp: str | None, *, is_start: bool = True, with_age: bool = True) -> Markup:
    """Return the time of day of an RFC 3339 time. The script adds "4 min" to the start of something
    that still lasts, else "4 min ago"."""
    text = format_moment(stamp or "").partition(" ")[2]
    age = " data-since" if is_start else " data-age"
    return _mark_time(stamp, text, age if with_age else "")


def _mark_time(stamp: str | None, text: str, attribute: str) -> Markup:
    if not stamp:
        return Markup("")
    return Markup('<time datetime="{}"{}>{}</time>').format(stamp, Markup(attribute), text)


def quote_segment(text: str) -> str:
    """Return any text as one segment of a path."""
    return quote(text, safe="")
