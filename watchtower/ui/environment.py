"""The templates of the pages, and the filters that they use.

Every value is escaped. Texts of processes are cleaned by the filter `line`, and our own sentences,
which may quote such texts in code spans, by `sentence`.
"""

from __future__ import annotations

from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from watchtower.core.ranksets import count_ranks
from watchtower.core.text import clean, clean_sentence, say_duration
from watchtower.core.times import say_moment

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
        "moment": mark_moment,
        "duration": say_duration,
        "percent": say_percent,
        "ranks": count_ranks,
        "segment": quote_segment,
    }
    environment.filters.update(filters)
    return environment


def mark_sentence(text: str, limit: int = MAX_SENTENCE) -> Markup:
    """Return one of our own sentences as HTML: its code spans become <code> elements."""
    pieces = clean_sentence(text, limit).split("`")
    if len(pieces) % 2 == 0:  # cut within a span
        pieces = ["".join(pieces)]
    marked = [
        Markup("<code>{}</code>").format(piece) if number % 2 else escape(piece)
        for number, piece in enumerate(pieces)
    ]
    return Markup("").join(marked)


def mark_moment(stamp: str | None, *, with_age: bool = True) -> Markup:
    """Return an RFC 3339 time as a <time> element. The script of the pages adds its age."""
    if not stamp:
        return Markup("")
    age = Markup(" data-age") if with_age else Markup("")
    return Markup('<time datetime="{}"{}>{}</time>').format(stamp, age, say_moment(stamp))


def say_percent(share: float) -> str:
    """Return "97 %". No verdict is certain, so the largest number is 99."""
    return f"{min(int(share * 100 + 0.5), 99)} %"


def quote_segment(text: str) -> str:
    """Return any text as one segment of a path."""
    return quote(text, safe="")
