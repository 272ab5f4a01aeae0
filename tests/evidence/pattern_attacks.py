"""Finds every pattern of the product, and makes texts that are hard for each of them."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from watchtower.evidence.facts import TextPattern

try:
    from re import _constants as ops  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as ops  # type: ignore[no-redef]
    import sre_parse as parser  # type: ignore[no-redef]

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "watchtower", ROOT / "agent", ROOT / "heartbeat")
BESIDE = (ROOT / "benchmarks", ROOT / "dashboards", ROOT / "deploy", ROOT / "examples")
"""Code of ours that no user's process gives a text to."""

MAKES_PATTERNS = ("compile", "match", "search", "fullmatch", "sub", "subn", "split", "findall")
MAKES_PATTERNS += ("finditer", "template")

ANYWHERE = ("_", "a", "A", "0", " ", ":", "<", ".", "/", "(", "[", '"', "'", "\\", "#", "\n", "é")
ENDS = ("", "!", "\n\n")
"""Endings that make a text which nearly matches one that does not."""

MAX_OWN = 40
"""Texts made of one pattern's own words: real patterns have fewer that can be repeated."""


@dataclass(frozen=True)
class Use:
    """One pattern and one way in which it is used."""

    name: str
    pattern: str
    run: Callable[[str], object]


@dataclass(frozen=True)
class Call:
    """A call that makes a pattern. `is_named`: an assignment of the module names the pattern."""

    place: str
    literal: str | None
    is_named: bool


def find_uses() -> list[Use]:
    """Return every pattern that is made when a module is imported, with its methods in use."""
    uses: list[Use] = []
    for path in _sources():
        text = path.read_text("utf-8")
        if "import re\n" in text or "evidence.facts import" in text:
            uses += _uses_in(_import(path), ast.parse(text))
    return uses


def find_unnamed() -> list[str]:
    """Return the places that make a pattern elsewhere than in an assignment of a module."""
    return [
        call.place
        for path in _sources()
        if "drills" not in path.parts  # what they search is their own tower's
        for call in _find_calls_of_re(path)
        if not call.is_named
    ]


def find_literals() -> dict[str, str]:
    """Return the patterns that are written in calls of `re`, by their places."""
    return {
        call.place: call.literal
        for path in _sources(*FOLDERS, *BESIDE)
        for call in _find_calls_of_re(path)
        if call.literal is not None
    }


def find_new_syntax(pattern: str) -> set[str]:
    """Return the parts of a pattern that Python 3.10 does not have: "ATOMIC_GROUP"."""
    return {str(kind) for kind in _kinds(parser.parse(pattern))} & {
        "ATOMIC_GROUP",
        "POSSESSIVE_REPEAT",
    }


def _kinds(value: Any) -> Iterator[Any]:
    """Yield all operations of a parsed pattern, however deep."""
    if isinstance(value, list | tuple | parser.SubPattern):
        for item in value:
            yield from _kinds(item)
    else:
        yield value


def attacks(pattern: str) -> Iterator[Callable[[int], str]]:
    """Yield texts, by their length, made of common characters and of the pattern's own words."""
    words = (word for word in _own_words(parser.parse(pattern), "") if word[1])
    own = islice(dict.fromkeys(words), MAX_OWN)
    for stem, pump in [*(("", each) for each in ANYWHERE), *own]:
        for end in ENDS:
            yield partial(_text, stem, pump, end)


def _text(stem: str, pump: str, end: str, length: int) -> str:
    return stem + pump * (length // len(pump)) + end


def _sources(*folders: Path) -> Iterator[Path]:
    for folder in folders or FOLDERS:
        yield from sorted(folder.rglob("*.py"))


def _import(path: Path) -> ModuleType:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return importlib.import_module(".".join(parts[parts[0] == "heartbeat" :]))


@functools.cache
def _find_calls_of_re(path: Path) -> list[Call]:
    """Return the calls in a file that make a pattern."""
    source = path.read_text("utf-8")
    if not re.search(r"\bre\s*\.", source):  # most files: not to parse them saves half a second
        return []
    tree = ast.parse(source)
    assigned = [each for each in tree.body if isinstance(each, ast.Assign | ast.AnnAssign)]
    named = {id(node) for each in assigned if each.value for node in ast.walk(each.value)}
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of, name = node.func.value, node.func.attr
            is_of_re = isinstance(of, ast.Name) and of.id == "re" and name in MAKES_PATTERNS
            if is_of_re:
                first = node.args[0] if node.args else None
                literal = first.value if isinstance(first, ast.Constant) else None
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                calls.append(Call(place, literal, id(node) in named))
    return calls


def _uses_in(module: ModuleType, tree: ast.Module) -> Iterator[Use]:
    seen: set[int] = set()
    methods = _methods(tree)
    for name, value in vars(module).items():
        if isinstance(value, re.Pattern):
            # Without one, it is used through a variable of another name.
            for method in sorted(methods.get(name, ("search",))):
                raw = value.pattern
                text = raw.decode("latin-1") if isinstance(raw, bytes) else raw
                yield Use(f"{module.__name__}.{name}.{method}", text, _run(value, method))
        elif not name.startswith("__"):
            for number, found in enumerate(_patterns_in(value, module.__name__, seen)):
                if isinstance(found, TextPattern):
                    pattern, run = found.regex.pattern, _ask(found)
                else:
                    pattern, run = found.pattern, _run(found, _only_method(methods))
                yield Use(f"{module.__name__}.{name} {number}", pattern, run)


def _only_method(methods: dict[str, set[str]]) -> str:
    """Return the method by which a module uses the patterns of a table: the slowest of them."""
    used = {method for names in methods.values() for method in names}
    return next((each for each in ("search", "finditer", "sub", "match") if each in used), "search")


def _patterns_in(
    value: Any, module: str, seen: set[int]
) -> Iterator[TextPattern | re.Pattern[str]]:
    """Yield the patterns of the facts that a value of a module holds, however deep."""
    if id(value) in seen:
        return
    seen.add(id(value))
    parts: list[Any] = []
    if isinstance(value, TextPattern | re.Pattern):
        yield value
    elif isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, tuple | list | frozenset | set):
        parts = list(value)
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, item.name) for item in fields(value)]
    elif isinstance(value, FunctionType) and value.__module__ == module:
        parts = [cell.cell_contents for cell in value.__closure__ or ()]
    for item in parts:
        yield from _patterns_in(item, module, seen)


def _ask(found: TextPattern) -> Callable[[str], object]:
    """Match the whole text: the cut is a second line of defence."""
    return found.regex.fullmatch if found.is_whole else found.regex.search


def _methods(tree: ast.Module) -> dict[str, set[str]]:
    """Return which methods of patterns are used, by the name before the dot."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in MAKES_PATTERNS:
            of = node.value  # `PATTERN.match` or `row.pattern.match`
            name = of.id if isinstance(of, ast.Name) else getattr(of, "attr", "")
            found.setdefault(name, set()).add(node.attr)
    return found


def _run(pattern: re.Pattern[Any], method: str) -> Callable[[str], object]:
    if isinstance(pattern.pattern, bytes):
        # The same expression on texts takes the same steps.
        pattern = re.compile(pattern.pattern.decode("latin-1"), pattern.flags | re.ASCII)
    if method == "sub":
        return lambda text: pattern.sub("", text)
    if method == "finditer":
        return lambda text: sum(1 for _ in pattern.finditer(text))
    return getattr(pattern, method)


def _own_words(items: Any, stem: str) -> Iterator[tuple[str, str]]:
    """Yield what can be repeated of a pattern, each with what has to come before it."""
    for kind, value in items:
        if kind in _REPEATS:
            _, high, body = value
            yield from _own_words(body, stem)
            if high is parser.MAXREPEAT:
                pump = _sample(body)
                yield stem, pump
                yield "", stem + pump
        else:
            for body in _bodies(kind, value):
                yield from _own_words(body, stem)
                yield "", stem + _sample(body)
        stem += _sample([(kind, value)])
    yield "", stem


_REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT)


def _bodies(kind: Any, value: Any) -> list[Any]:
    if kind is ops.BRANCH:
        return list(value[1])
    return [value[3]] if kind is ops.SUBPATTERN else []


def _sample(items: Any) -> str:
    """Return a short text that matches, but for conditions."""
    return "".join(_sample_one(kind, value) for kind, value in items)


def _sample_one(kind: Any, value: Any) -> str:
    if kind is ops.LITERAL:
        return chr(value)
    if kind in (ops.ANY, ops.NOT_LITERAL):
        return "a" if value != ord("a") else "b"
    if kind is ops.IN:
        return _sample_of_set(value)
    if kind in _REPEATS:
        return _sample(value[2]) * max(1, value[0])
    bodies = _bodies(kind, value)
    return _sample(bodies[0]) if bodies else ""


def _sample_of_set(items: list[Any]) -> str:
    if items[0][0] is ops.NEGATE:
        return "a"
    kind, value = items[0]
    if kind is ops.CATEGORY:
        return {ops.CATEGORY_DIGIT: "1", ops.CATEGORY_SPACE: " "}.get(value, "a")
    return chr(value if kind is ops.LITERAL else value[0])
