"""Bounds have reasons, decoders are made early, and interpreters know the options that they get."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_docs import texts

ROOT = Path(__file__).parents[2]
BOUND = re.compile(r"_?MAX_\w+|\w+_BYTES")
ASSIGNMENT = re.compile(rf"^(?=\S).*(?:{BOUND.pattern}).*=", re.MULTILINE)
FOLDERS = ("agent", "watchtower")


def find_bounds_without_reason(path: Path) -> Iterator[str]:
    """Yield the module-level bounds without a comment or a docstring. Bounds on lines in a row may
    share one."""
    text = path.read_text("utf-8")
    if not ASSIGNMENT.search(text):  # most files: not to parse them saves a second
        return
    lines, body = text.splitlines(), ast.parse(text).body
    for number, node in enumerate(body):
        names = BOUND.findall(" ".join(_names_of(node)))
        if not names or isinstance(getattr(node, "value", None), ast.Call):
            continue
        after = iter(body[number + 1 :])
        last, follower = node, next(after, None)
        while follower is not None and _names_of(follower) and _are_adjacent(last, follower):
            last, follower = follower, next(after, None)
        is_commented = "#" in lines[node.lineno - 1] or lines[node.lineno - 2].startswith("#")
        if not is_commented and not _is_text(follower):
            yield f"{path.relative_to(ROOT)}: {', '.join(names)}"


def _names_of(node: ast.stmt) -> list[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [
        each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
    ]


def _are_adjacent(before: ast.stmt, after: ast.stmt) -> bool:
    return after.lineno == (before.end_lineno or before.lineno) + 1


def _is_text(node: ast.stmt | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_bound_has_a_reason(folder: str):
    found = [
        each
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "drills" not in path.parts
        for each in find_bounds_without_reason(path)
    ]
    assert found == [], "add a docstring below the bound: what it counts, and why that many"


def test_a_bound_without_a_reason_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text('MAX_A = 1\n\nMAX_B = 2\nB_BYTES = 3\n"""Two."""\n\nMAX_C = 4  # few\n')
    assert list(find_bounds_without_reason(path)) == ["module.py: MAX_A"]


def test_every_bound_of_other_modules_has_a_reason():
    folders = ("dashboards", "heartbeat", "watchtower/drills")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    paths += (ROOT / "watchtower").glob("*.py")
    # The programs of drills imitate users' code, which bounds nothing of ours.
    paths = sorted(path for path in paths if "programs" not in path.parts)
    assert [each for path in paths for each in find_bounds_without_reason(path)] == []


@pytest.mark.parametrize("folder", ["agent", "watchtower", "benchmarks"])
def test_no_thread_is_the_first_to_read_a_type(folder: str):
    """msgspec 0.22 ends the process when two threads are the first to read one type at once."""
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*.py")
        if "msgspec.json.decode(" in path.read_text("utf-8")
    ]
    assert found == [], "make a `msgspec.json.Decoder` at import instead"


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
