"""`drill --stay` keeps the hung job and its pages on a terminal until Ctrl-C; elsewhere it ends."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator

from watchtower.service.interpreter import module_command

DRILL = ["drill", "sigstop", "--backend", "stdlib", "--ranks", "2", "--nodes", "1", "--stay"]
DEADLINE_S = 120.0


@contextlib.contextmanager
def drill_on_a_terminal(**variables: str) -> Iterator[tuple[subprocess.Popen, int]]:
    master, slave = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | variables
    process = subprocess.Popen(
        module_command("watchtower", *DRILL),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment | {"TERM": "dumb", "COLUMNS": "200"},
    )
    os.close(slave)
    try:
        yield process, master
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_until(master: int, words: str) -> str:
    """Return what is written to the terminal until it contains these words, or until its end."""
    text, deadline = "", time.monotonic() + DEADLINE_S
    while words not in text:
        assert time.monotonic() < deadline, text
        try:
            text += os.read(master, 65536).decode("utf-8", "replace")
        except OSError:  # the drill has ended
            break
    return text


def test_on_a_terminal_the_page_of_the_incident_stays_until_ctrl_c():
    with drill_on_a_terminal() as (process, master):
        text = read_until(master, "Ctrl-C ends the job")
        assert "RIGHT" in text
        found = re.search(r"Its page:\s+(http://127\.0\.0\.1:\d+/incidents/\w{26})", text)
        assert found, text
        with urllib.request.urlopen(found[1], timeout=10) as answer:
            page = answer.read().decode()
        assert "Hung" in page
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        read_until(master, "no such words")
        assert process.wait(DEADLINE_S) == 0


def test_in_ci_it_ends_by_itself():
    with drill_on_a_terminal(CI="true") as (process, master):
        text = read_until(master, "no such words")
        assert process.wait(DEADLINE_S) == 0
        assert "RIGHT" in text
        assert "Its page" not in text
