"""No source starts an interpreter with an option that the oldest supported one does not know."""

from __future__ import annotations

import re
from pathlib import Path

from tests.contract.test_decisions import ROOT, texts

SAFE_PATH = r"-[bBdEhiIOqRsSuvVx]*P\w*"
"""-P, also behind other letters, is new in 3.11. `module_command` has its effect."""
NEWER = rf"(?:{SAFE_PATH}|--help-(?:all|env|xoptions))"
STARTS = re.compile(rf"""(["']){NEWER}\1|[Pp]ython\S*\s(?:-\S+\s)*{NEWER}(?!\w)""")


def find_starts(text: str) -> list[str]:
    return [match.group() for match in STARTS.finditer(text)]


def test_the_pattern_finds_them_in_code_and_in_documents():
    assert find_starts('run([sys.executable, "-P", "-m", "agent"])') == ['"-P"']
    assert find_starts("start('-IP', '--help-env')") == ["'-IP'", "'--help-env'"]
    assert find_starts("$ .venv/bin/python3 -u -P -m agent") == ["python3 -u -P"]
    assert find_starts("python -m x; cp -P a b; python -c 'x'; python -Iu; ['-p', '-I']") == []


def test_no_file_starts_an_interpreter_with_one():
    this = Path(__file__).relative_to(ROOT)
    starts = {path: find_starts(text) for path, text in texts() if path != this}
    assert {path: found for path, found in starts.items() if found} == {}
