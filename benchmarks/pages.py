"""Measures the pages of one hung job: python -m benchmarks.pages [--ranks N] [--seconds S]

Two things are measured, with a real tower and imagined agents:

* the page of the incident and of the job, with all parts, and what their script loads: bytes, and
  seconds until the last byte when nothing is kept. At most 100 kB and 1 s each;
* the CPU time of a tower while 200 open pages ask every 2 s and nothing changes, above the CPU time
  of the same tower without pages. At most 5 % of a core.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import tempfile
import time
from pathlib import Path

from tests.system.ui.imagined_fleet import JOB, LAYOUTS, hung_fleet
from tests.towers import RunningTower, running_tower
from tests.waiting import wait_until

OPEN_PAGES, EVERY_S = 200, 2.0
CONNECTIONS = 8
"""Browsers have one each. The tower limits those of one address."""

PARTS = ("graph", "contrast", "ranks", "traces", "stacks", "feedback")
"""Parts that the page of the incident must have."""

RESPITE_S = 1.5
"""After this time, the values of a page are collected again."""


class Browser:
    """Loads pages over one connection."""

    def __init__(self, tower: RunningTower) -> None:
        self._connection = http.client.HTTPConnection(*tower.address, timeout=60)

    def load(self, path: str, etag: str = "") -> tuple[int, str, bytes, float]:
        """Return status, ETag, body and seconds."""
        began = time.perf_counter()
        headers = {"Accept-Encoding": "gzip"} | ({"If-None-Match": etag} if etag else {})
        self._connection.request("GET", path, headers=headers)
        reply = self._connection.getresponse()
        body = reply.read()
        return reply.status, reply.headers["ETag"] or "", body, time.perf_counter() - began


def measure_page(tower: RunningTower, path: str, times: int) -> tuple[str, int]:
    """Print the size and the time of a page and of what its script loads. Returns its HTML."""
    browser, used = Browser(tower), []
    sizes, seconds, html = [], [], ""
    for _ in range(times):
        time.sleep(RESPITE_S)
        before = cpu_s(tower)
        status, _, body, took = browser.load(path)
        assert status == 200, body
        html = body.decode()
        found = re.search(r'data-path="[./]*([^"]+)"', html)
        assert found is not None, "the page has no grid"
        loaded = [browser.load(f"/{found[1]}"), browser.load(f"/{found[1]}.bin")]
        sizes.append(len(body))
        used.append(cpu_s(tower) - before)
        seconds.append((took, took + sum(each[3] for each in loaded)))
        more = sum(len(each[2]) for each in loaded)
    seconds.sort()
    usual, worst, whole = seconds[times // 2][0], seconds[-1][0], max(each[1] for each in seconds)
    print(
        f"{path[:24]:<24} {max(sizes) / 1000:6.1f} kB of HTML in {usual:.3f} s, at most "
        f"{worst:.3f} s; with the grid ({more / 1000:.1f} kB) {whole:.3f} s; "
        f"{sorted(used)[times // 2]:.2f} CPU seconds of the tower, with its other work"
    )
    return html, max(sizes)


def cpu_s(tower: RunningTower) -> float:
    """Return the CPU seconds of the tower's process."""
    fields = Path(f"/proc/{tower.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_idle(tower: RunningTower, seconds: float) -> float:
    """Return the share of a core that the tower uses without pages."""
    before = cpu_s(tower)
    time.sleep(seconds)
    return (cpu_s(tower) - before) / seconds


def measure_open_pages(tower: RunningTower, path: str, seconds: float) -> tuple[float, int, int]:
    """Return the share of a core, and the numbers of answers 304 and of other answers."""
    browsers = [Browser(tower) for _ in range(CONNECTIONS)]
    etags = [browsers[n % CONNECTIONS].load(path)[1] for n in range(OPEN_PAGES)]
    unchanged = changed = 0
    began, before = time.monotonic(), cpu_s(tower)
    for turn in range(int(seconds / EVERY_S) * OPEN_PAGES):
        wait_s = began + turn * EVERY_S / OPEN_PAGES - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        page = turn % OPEN_PAGES
        status, etags[page], _, _ = browsers[page % CONNECTIONS].load(path, etags[page])
        unchanged, changed = unchanged + (status == 304), changed + (status != 304)
    return (cpu_s(tower) - before) / (time.monotonic() - began), unchanged, changed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=16_384, choices=tuple(LAYOUTS))
    parser.add_argument("--seconds", type=float, default=40.0, help="of open pages; half without")
    parser.add_argument("--times", type=int, default=5, help="loads of each page")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "tower"
        with hung_fleet(folder, args.ranks) as (tower, incident):
            browser, path = Browser(tower), f"/incidents/{incident}"
            wait_until(lambda: b'id="traces"' in browser.load(path)[2], "the series arrive", 120)
            print(f"{args.ranks} ranks; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            html, size = measure_page(tower, path, args.times)
            missing = [name for name in PARTS if f'<section id="{name}"' not in html]
            measure_page(tower, f"/jobs/{JOB}", args.times)
        with running_tower(folder) as tower:
            idle = measure_idle(tower, args.seconds / 2)
            share, unchanged, changed = measure_open_pages(tower, path, args.seconds)
        print(
            f"{OPEN_PAGES} open pages of it: {share - idle:.1%} of a core ({share:.1%}, without "
            f"pages {idle:.1%}); {unchanged} answers 304, {changed} others"
        )
    if missing:
        raise SystemExit(f"the page lacks {', '.join(missing)}")
    if size > 100_000 or share - idle > 0.05:
        raise SystemExit("over a limit")


if __name__ == "__main__":
    main()
