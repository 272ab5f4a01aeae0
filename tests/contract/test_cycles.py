"""No file imports another one that imports it in turn, over any number of steps; nor does a folder.

An import inside a function counts, one for types alone (`if TYPE_CHECKING`) does not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREES = {
    "watchtower": ROOT,
    "agent": ROOT,
    "watchtower_heartbeat": ROOT / "heartbeat",
    "dashboards": ROOT,
    "benchmarks": ROOT,
}
SCRIPTS = ROOT / "watchtower/drills/programs"
"""They imitate users' code: they are run by path, and import each other as siblings."""

FOR_TYPES = re.compile(r"^( *)if [^\n]*\bTYPE_CHECKING\b.*\n(?:\1 +.*\n|\n)+", re.MULTILINE)
IMPORT = re.compile(
    r"^ *(?:from (?P<module>[\w.]+) import (?P<names>\([^)]*\)|.+)|import (?P<modules>.+))$",
    re.MULTILINE,
)


def find_modules() -> dict[str, Path]:
    """Return every module by name; a package is its `__init__.py`."""
    found = {}
    for tree, folder in TREES.items():
        for path in (folder / tree).rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if not path.is_relative_to(SCRIPTS):
                found[name] = path
    return found


def find_imports(text: str) -> Iterator[tuple[str, str]]:
    """Yield what a file imports: a module, and the name that is taken from it, if one is.

    The lines are searched: to parse all files took 2 s.
    """
    for found in IMPORT.finditer(FOR_TYPES.sub("", text)):
        if found["module"]:
            names = re.findall(r"\w+(?: as \w+)?", found["names"])
            yield from ((found["module"], name.partition(" ")[0]) for name in names)
        else:
            yield from ((name.split()[0], "") for name in found["modules"].split(","))


@functools.cache
def read_graph() -> dict[str, set[str]]:
    """Map every module to the modules that it imports."""
    return read_imports(find_modules())


def read_imports(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Map each of these modules to those of them that it imports."""
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        imported = set()
        for module, taken in find_imports(path.read_text("utf-8")):
            inner = f"{module}.{taken}"
            imported.add(inner if inner in modules else module)
        graph[name] = (imported & modules.keys()) - {name}
    return graph


def find_cycles(graph: Mapping[str, set[str]]) -> list[str]:
    """Return cycles, one for each edge that has to go."""
    graph, cycles = {name: set(targets) for name, targets in graph.items()}, []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            cycle = error.args[1][::-1]  # it lists what is imported first
            cycles.append(" -> ".join(cycle))
            graph[cycle[0]].discard(cycle[1])
        else:
            return cycles


def fold(graph: Mapping[str, set[str]], package: str) -> dict[str, set[str]]:
    """Return the graph of what lies directly in a package; a folder in it is one node."""
    inside: dict[str, set[str]] = {}
    for name, targets in graph.items():
        part = child_of(name, package)
        if part:
            parts = {child_of(target, package) for target in targets}
            inside.setdefault(part, set()).update(parts - {part, ""})
    return inside


def child_of(name: str, package: str) -> str:
    """Return what of a package a module lies in: "wire" of `watchtower.wire.dumps`; "" outside."""
    inside = name.startswith(f"{package}.")
    return name.removeprefix(f"{package}.").partition(".")[0] if inside else ""


def test_a_cycle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert len(find_cycles(graph)) == 1
    folded = fold({"p.x.one": {"p.y.two"}, "p.y.three": {"p.x.one"}, "p.y.two": set()}, "p")
    assert find_cycles(folded) == ["x -> y -> x"]


def test_all_imports_of_a_file_are_found_but_those_for_types() -> None:
    text = """
import a.b, c as d
from e import f as g, h
if TYPE_CHECKING:
    from i import j

    import k
from l import (
    m,
    n as o,
)
def p():
    from q.r import s
"""
    taken = [("a.b", ""), ("c", ""), ("e", "f"), ("e", "h"), ("l", "m"), ("l", "n"), ("q.r", "s")]
    assert list(find_imports(text)) == taken


def test_no_file_is_in_a_cycle() -> None:
    assert find_cycles(read_graph()) == []


def test_no_program_of_a_drill_is_in_a_cycle() -> None:
    programs = {path.stem: path for path in SCRIPTS.glob("*.py")}
    queued = {f"queued.{path.stem}": path for path in (SCRIPTS / "queued").glob("*.py")}
    graph = read_imports(programs | queued)
    assert any(graph.values())
    assert find_cycles(graph) == []


@pytest.mark.parametrize(
    "package", sorted({name.rpartition(".")[0] for name in find_modules()} - {""})
)
def test_no_folder_is_in_a_cycle(package: str) -> None:
    assert find_cycles(fold(read_graph(), package)) == []
