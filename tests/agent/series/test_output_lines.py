"""The last lines of a suspect's output: only of files it may read, clean, cut, without secrets."""

from __future__ import annotations

import os

import pytest

from agent.dumpers.user_files import FileRights, NotReadable
from agent.series.output_child import TAIL_BYTES, _read_tail, clean_lines
from watchtower.wire.series import MAX_OUTPUT_LINE
from watchtower.writing.secrets import HIDDEN

PROCESS = f"/proc/{os.getpid()}"
ROOT = FileRights(user=0, groups=frozenset(), is_root=True)
OTHER = FileRights(user=4242, groups=frozenset({4242}))


def clean(text: str, count: int = 20) -> tuple[str, ...]:
    return clean_lines(text.encode(), count, is_cut=False)


def read(descriptor: int, rights: FileRights = ROOT, count: int = 20):
    return _read_tail(f"{PROCESS}/fd/{descriptor}", PROCESS, rights, count)[1]["lines"]


def test_the_last_lines_that_are_not_empty():
    text = "".join(f"step {n}\n\n" for n in range(100))
    assert clean(text, 3) == ("step 97", "step 98", "step 99")


def test_of_a_progress_bar_the_last_version():
    assert clean("10 %\r20 %\r30 %\r\nnext\r\n") == ("30 %", "next")


def test_control_characters_colours_and_directions_are_removed():
    text = (
        "\x1b[31mred\x1b[0m \x1b]0;title\x07x\x1b]8;;http://e\x1b\\link \u202eevil\u202c \x00\x07z"
    )
    (line,) = clean(text)
    assert line.isprintable()
    assert line.split() == ["red", "xlink", "evil", "z"]


def test_the_indent_of_a_traceback_remains():
    text = 'Traceback:\n  File "a.py", line 3\n\tx = 1\nValueError'
    assert clean(text) == ("Traceback:", '  File "a.py", line 3', " x = 1", "ValueError")


def test_long_lines_are_cut():
    (line,) = clean("x" * 1_000_000)
    assert len(line) == MAX_OUTPUT_LINE
    assert line.endswith("x…")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("HF_TOKEN=hf_abcdefghijkl", f"HF_TOKEN={HIDDEN}"),
        ("using hf_abcdefghijklmnop now", f"using {HIDDEN} now"),
        ("password: hunter2", f"password: {HIDDEN}"),
        ("{'api_key': 'abcd1234'}", f"{{'api_key': '{HIDDEN}'}}"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", f"AWS_SECRET_ACCESS_KEY={HIDDEN}"),
        ("Authorization: Bearer abcdef123456", f"Authorization: {HIDDEN} {HIDDEN}"),
        (
            "GET https://bob:pw@host/x?sig=AbC%2B&n=1",
            f"GET https://{HIDDEN}@host/x?sig={HIDDEN}&n=1",
        ),
        ("AKIAIOSFODNN7EXAMPLE", HIDDEN),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", HIDDEN),
    ],
)
def test_what_looks_like_a_secret_is_hidden(line, shown):
    assert clean(line) == (shown,)


@pytest.mark.parametrize(
    "line",
    [
        "step 1233 loss 2.41 tokens/s: 412345 tokens=4096",
        "max_token: 4096",
        "commit 1f2e3d4c5b6a79880123456789abcdef01234567",
        "reading /mnt/shards/0042.tar",
    ],
)
def test_ordinary_lines_are_shown_as_they_are(line):
    assert clean(line) == (line,)


def test_a_private_key_is_hidden_also_without_its_beginning():
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    shown = clean(f"a\n{begin}\nMIIEow\nshort=\n{end}\nb")
    assert shown == ("a", HIDDEN, HIDDEN, HIDDEN, HIDDEN, "b")
    assert clean("A" * 64 + "\nb") == (HIDDEN, "b")


@pytest.fixture
def log(tmp_path):
    """A file with many lines, opened for writing only, as a launcher opens it."""
    path = tmp_path / "rank.log"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(50_000)))
    descriptor = os.open(path, os.O_WRONLY)
    yield path, descriptor
    os.close(descriptor)


def test_the_end_of_a_file_is_read_whatever_its_length(log):
    path, descriptor = log
    assert path.stat().st_size > 4 * TAIL_BYTES
    assert read(descriptor, count=2) == ("line 49998", "line 49999")


def test_a_file_that_was_unlinked_is_read(log):
    path, descriptor = log
    path.unlink()
    assert read(descriptor, count=1) == ("line 49999",)


def test_a_file_that_the_process_may_not_read_is_not_read(log):
    path, descriptor = log
    path.chmod(0o600)
    with pytest.raises(NotReadable):
        read(descriptor, OTHER)
    path.chmod(0o604)
    assert read(descriptor, OTHER, 1) == ("line 49999",)


def test_pipes_terminals_devices_and_pseudo_files_are_not_read():
    inlet, outlet = os.pipe()
    leader, terminal = os.openpty()
    null, pseudo = os.open("/dev/null", os.O_WRONLY), os.open("/proc/self/status", os.O_RDONLY)
    opened = (inlet, outlet, leader, terminal, null, pseudo)
    os.write(outlet, b"secret\n")
    try:
        for descriptor in opened:
            with pytest.raises(NotReadable):
                read(descriptor)
        assert os.read(inlet, 100) == b"secret\n"
    finally:
        for descriptor in opened:
            os.close(descriptor)
