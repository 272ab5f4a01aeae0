"""Every console block of a document is executed by a test, or has a reason, and is understood."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.cli import build_parser
from tests.console import find_commands
from tests.documented import BLOCKS, ROOT, find_entry, list_blocks
from watchtower.cli import make_parser

FOUND = list_blocks()


def test_every_block_has_an_entry_and_every_entry_a_block():
    missing = [(page, block[:60]) for page, block in FOUND if find_entry(page, block) is None]
    assert missing == [], "add them to tests/documented.py"
    unused = BLOCKS.keys() - {find_entry(page, block) for page, block in FOUND}
    assert unused == set(), "these blocks are gone"


@pytest.mark.parametrize("entry", sorted(set(BLOCKS.values())))
def test_an_entry_is_a_test_that_exists_or_a_reason(entry: str):
    path, colons, name = entry.partition("::")
    if not colons:
        assert entry.startswith("not run: ")
        return
    text = (ROOT / path).read_text("utf-8")
    assert re.search(rf"^def {re.escape(name)}\(", text, re.MULTILINE)


def _list_commands() -> list[list[str]]:
    found = []
    for page in dict.fromkeys(page for page, _ in FOUND):
        blocks = [block for name, block in FOUND if name == page]
        text = "".join(f"```console\n{_only_typed(block)}\n```\n" for block in blocks)
        found += find_commands(text)
    return [words for words in found if words and Path(words[0]).name in PROGRAMS]


PROGRAMS = {"watchtower": make_parser, "watchtower-agent": build_parser}


def _only_typed(block: str) -> str:
    """Return the lines that a person types, each whole and without what follows a pipe."""
    lines = block.replace("\\\n", " ").splitlines()
    typed = [line.split(" | ")[0] for line in lines if line.startswith(("$ ", "# "))]
    return "\n".join(re.sub(r"\s+# .*", "", line) for line in typed)


@pytest.mark.parametrize("words", _list_commands(), ids=" ".join)
def test_every_option_of_a_document_is_understood(words: list[str]):
    make = PROGRAMS[Path(words[0]).name]
    make().parse_args(words[1:])
