"""Writes pictures of the pages: `python -m tests.system.ui.screenshots FOLDER` (make screenshots).

Each page with a job of 8 and of 4,096 ranks, on a phone and on a desktop, light and dark.
"""

from __future__ import annotations

import io
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from tests.system.ui.browser import DESKTOP, PHONE, running_chromium, visiting
from tests.system.ui.imagined_fleet import JOB, hung_fleet

PAGES = {"incident": "/incidents/{incident}", "job": "/jobs/{job}", "fleet": "/"}
INTRODUCTION = (
    "`make screenshots` writes this folder. The jobs are imagined: a rank reads from a file server "
    "that does not answer."
)
RANKS = (8, 4096)
SIZES = {"desktop": DESKTOP, "phone": PHONE}
SCHEMES = ("light", "dark")

MAX_HEIGHT = 2400
"""Pixels of a picture. What is below is cut."""

FIRST_SCREEN = "first-screen.png"
"""The top of the first picture, for the README."""

FIRST_SCREEN_HEIGHT = 740
"""Pixels: down to the buttons."""

MAX_BYTES = 150_000
"""Of a picture: a page of documents loads several."""

COLOURS = (128, 64, 32, 16)
"""Numbers of colours that are tried until a picture is small enough."""


def write_picture(path: Path, content: bytes, max_height: int = MAX_HEIGHT) -> int:
    """Write a picture with few colours, and return its number of bytes."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(picture.height, max_height)))
    for colours in COLOURS:
        buffer = io.BytesIO()
        picture.quantize(colours, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= MAX_BYTES:
            path.write_bytes(buffer.getvalue())
            return buffer.tell()
    raise SystemExit(f"{path.name} has {buffer.tell()} bytes also with {colours} colours")


def take(browser: Any, url: str, path: str, size: str, scheme: str) -> bytes:
    """Return a picture of a page."""
    with visiting(browser, url, viewport=SIZES[size], color_scheme=scheme) as visit:
        visit.open(path)
        visit.page.wait_for_timeout(1000)  # for what the script draws
        assert visit.foreign == []
        return visit.page.screenshot(full_page=True)


def write_index(folder: Path) -> None:
    """Write a page of documents that shows all pictures."""
    lines = ["# Pictures of the pages", "", INTRODUCTION, ""]
    for page, ranks in itertools.product(PAGES, RANKS):
        lines += [f"## {page.capitalize()}, a job of {ranks:,} ranks", ""]
        for size, scheme in itertools.product(SIZES, SCHEMES):
            alternative = f"{page} with {ranks:,} ranks, {size}, {scheme}"
            lines.append(f"![{alternative}]({name_picture(page, ranks, size, scheme)})")
        lines.append("")
    (folder / "README.md").write_text("\n".join(lines))


def name_picture(page: str, ranks: int, size: str, scheme: str) -> str:
    """Return the name of a file."""
    return f"{page}-{ranks}-{size}-{scheme}.png"


def main() -> None:
    """Write all pictures."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_index(folder)
    first = folder / name_picture("incident", min(RANKS), "desktop", "light")
    with running_chromium() as browser:
        for ranks in RANKS:
            with (
                tempfile.TemporaryDirectory() as place,
                hung_fleet(Path(place) / "tower", ranks) as (tower, incident),
            ):
                for page, size, scheme in itertools.product(PAGES, SIZES, SCHEMES):
                    path = PAGES[page].format(job=JOB, incident=incident)
                    file = folder / name_picture(page, ranks, size, scheme)
                    count = write_picture(file, take(browser, tower.url, path, size, scheme))
                    print(f"{file}: {count // 1000} kB", flush=True)
    write_picture(folder / FIRST_SCREEN, first.read_bytes(), FIRST_SCREEN_HEIGHT)


if __name__ == "__main__":
    main()
