"""A document of headings, paragraphs, lists, tables, code and drawings, as Markdown or HTML.

Texts contain names of processes and nodes. They are escaped for the format. Only code spans in
backticks stay markup.
"""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

from watchtower.writing.verdict_text import escape_markdown


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Sentences."""

    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Items in no order."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A head and rows of the same length."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines in a fixed width."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """An address of our own, in a line of its own."""

    url: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture, and the same in words."""

    svg: str
    text: str


Part = Heading | Paragraph | Listing | Table | Code | Link | Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A title and parts."""

    title: str
    parts: tuple[Part, ...]


def write_markdown(document: Document) -> str:
    """Return a document as CommonMark with tables."""
    blocks = [f"# {escape_markdown(document.title)}", *map(_part_markdown, document.parts)]
    return "\n\n".join(blocks) + "\n"


def _part_markdown(part: Part) -> str:
    match part:
        case Heading(text):
            return f"## {escape_markdown(text)}"
        case Paragraph(text):
            return escape_markdown(text)
        case Listing(items):
            return "\n".join(f"* {escape_markdown(item)}" for item in items)
        case Table(head, rows):
            rule = f"|{'---|' * len(head)}"
            lines = [_row_markdown(head), rule, *map(_row_markdown, rows)]
            return "\n".join(lines)
        case Code(lines):
            return "\n".join(["```", *(line.replace("`", "'") for line in lines), "```"])
        case Link(url):
            return f"<{url}>"
        case Drawing(_, text):
            return escape_markdown(text)


def _row_markdown(cells: Sequence[str]) -> str:
    # A bar ends a cell, also inside a code span.
    return f"| {' | '.join(escape_markdown(cell).replace('|', '&#124;') for cell in cells)} |"


def write_html(document: Document) -> str:
    """Return a document as a page without style and script."""
    title = html.escape(document.title)
    head = f'<meta charset="utf-8"><title>{title}</title>'
    body = "\n".join([f"<h1>{title}</h1>", *map(_part_html, document.parts)])
    page = f"<head>{head}</head>\n<body>\n{body}\n</body>"
    return f'<!DOCTYPE html>\n<html lang="en">\n{page}\n</html>\n'


def _part_html(part: Part) -> str:
    match part:
        case Heading(text):
            return f"<h2>{html.escape(text)}</h2>"
        case Paragraph(text):
            return f"<p>{_spans(text)}</p>"
        case Listing(items):
            return f"<ul>{''.join(f'<li>{_spans(item)}</li>' for item in items)}</ul>"
        case Table(head, rows):
            lines = [
                _row_html("th", head, html.escape),
                *(_row_html("td", r, _spans) for r in rows),
            ]
            return f"<table>{''.join(lines)}</table>"
        case Code(lines):
            return f"<pre>{html.escape(chr(10).join(lines))}</pre>"
        case Link(url):
            shown = html.escape(url)
            return f'<p><a href="{shown}">{shown}</a></p>'
        case Drawing(svg, text):
            # As an image, a picture runs no script and uses no style of the page.
            data = b64encode(svg.encode()).decode()
            shown = html.escape(text)
            return (
                f'<p><img src="data:image/svg+xml;base64,{data}" alt="{shown}"></p><p>{shown}</p>'
            )


def _row_html(tag: str, cells: Sequence[str], write: Callable[[str], str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{write(cell)}</{tag}>' for cell in cells)}</tr>"


def _spans(text: str) -> str:
    """Return text with its code spans. An odd backtick stays a character."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return html.escape(text)
    tags = cycle(("{}", "<code>{}</code>"))
    return "".join(next(tags).format(html.escape(piece)) for piece in pieces)
