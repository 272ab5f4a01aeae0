"""Which loops are around a line: by value on tricky code, and against the parser on any code."""

from __future__ import annotations

import ast
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.dumpers.source_child import MAX_LOOPS, find_loops

TRICKY = '''\
"""A docstring
    for x in y:
says nothing."""
for epoch in range(3):                     # L4: itself, 4
    # for comment in none:
    for batch in load(                     # L6: 6 4
        "while True:",                     # L7: 6 4
        depth=[                            # L8: 6 4
for_ := 1,                                 # L9: 6 4
        ],
    ):
        text = """
for inside in text:
"""; train(batch)                          # L14: 6 4
        if (batch and
not epoch): train(batch)                   # L16: 6 4
        total = [f(x)
                 for x in batch            # L18: 6 4
                 ]
        while not done(): wait()           # L20: 20 6 4
        def inner(a=1):                    # L21: ?
            return a                       # L22: none
        @decorate                          # L23: ?
        class Thing:                       # L24: ?
            for at in range(2):            # L25: 25
                value = at                 # L26: 25
    else:                                  # L27: 4
        after(epoch)                       # L28: 4
\ttabs = 1                                 # L29: 4

    format(epoch); forward = 1 \\
        + 2                                # L32: 4
    quote = 'it\\'s # not a comment'; whiled = 3  # L33: 4
    name = "unfinished                     # L34: 4
    s = f"{epoch!r:>{width}} {'#'}"        # L35: 4
async def main():
    async for item in stream():            # L37: 37
        async with lock:
            try:
                await item                 # L40: 37
            finally:
                while True:
                    pass                   # L43: 42 37
    return 1                               # L44: none
match = 1                                  # L45: none
for line in f: pass                        # L46: 46
'''


def wanted(source: str) -> dict[int, tuple[int, ...] | None]:
    found: dict[int, tuple[int, ...] | None] = {}
    for number, line in enumerate(source.split("\n"), 1):
        _, mark, text = line.rpartition(f"# L{number}: ")
        if mark:
            text = text.removeprefix("itself, ")
            found[number] = (
                None if text == "?" else () if text == "none" else tuple(map(int, text.split()))
            )
    return found


def test_tricky_code() -> None:
    expected = wanted(TRICKY)
    assert len(expected) > 25
    assert find_loops(TRICKY, expected) == expected


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_line_ends_of_other_systems(ending: str) -> None:
    expected = wanted(TRICKY)
    assert find_loops(TRICKY.replace("\n", ending), expected) == expected


def test_lines_without_code_and_beyond_the_end_are_unknown() -> None:
    assert find_loops("for x in y:\n\n    # z\n    pass\n", [0, -1, 2, 3, 9]) == dict.fromkeys(
        (0, -1, 2, 3, 9)
    )


def test_only_the_innermost_of_many_loops() -> None:
    deep = "".join(f"{' ' * at}while {at}:\n" for at in range(20)) + " " * 20 + "pass"
    assert find_loops(deep, [21])[21] == tuple(range(20, 20 - MAX_LOOPS, -1))


# Against the parser

SIMPLE = st.sampled_from(
    [
        "x = 1",
        "x = (1,\n2)",
        "x = [y for y in (1, 2)\nif y]",
        '"""text\nwhile 1:\n"""',
        "x = 'a' \\\n'b'",
        "pass  # for x in y:",
        "x = 1; y = {1:\n2}",
        "for x in (): pass",
        "forx = {'#': \"'\"}",
        "x = f\"{'a'}\" + rf'\\''",
    ]
)
HEADERS = st.sampled_from(
    [
        "for x in (1,\n2):",
        "while (x :=\n1):",
        "while x: # for",
        "if x:",
        "with (x):",
        "async def f():",
        "def f(a=(1,\n2)):",
        "@d\ndef f():",
        "class C:",
    ]
)
INDENTS = st.sampled_from([" ", "  ", "    ", "\t"])


def indented(block: list[str], indent: str) -> list[str]:
    """Indent what begins a line of code; what stands inside of a string or brackets may stay."""
    lines = []
    for statement in block:
        first, *rest = statement.split("\n")
        lines.append("\n".join([indent + first, *rest]))
    return lines


@st.composite
def blocks(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """Statements, each possibly over several lines; compound ones as several."""
    block: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        if depth > 4 or draw(st.booleans()):
            block.append(draw(SIMPLE))
            continue
        header = draw(HEADERS)
        block.extend(["@d", "def f():"] if header.startswith("@") else [header])
        block.extend(indented(draw(blocks(depth + 1)), draw(INDENTS)))
        if header.startswith(("for", "while", "if")) and draw(st.booleans()):
            block.append("else:")
            block.extend(indented(draw(blocks(depth + 1)), draw(INDENTS)))
    return block


def first_line(node: ast.stmt) -> int:
    """A decorated function's own line is that of its `def`."""
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])


def by_parser(source: str) -> dict[int, tuple[int, ...]]:
    """Loops around the first line of each statement, as the parser sees them."""
    found: dict[int, tuple[int, ...]] = {}

    def visit(statements: list[ast.stmt], loops: tuple[int, ...]) -> None:
        for node in statements:
            own = isinstance(node, ast.For | ast.While)
            scope = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            inside = () if scope else (node.lineno, *loops) if own else loops
            if not scope:
                last = first_line(node.body[0]) - 1 if hasattr(node, "body") else node.end_lineno
                for line in range(node.lineno, max(node.lineno, last or 0) + 1):
                    found.setdefault(line, inside[:MAX_LOOPS])
            visit(getattr(node, "body", []), inside)
            visit(getattr(node, "orelse", []), loops)

    visit(ast.parse(source).body, ())
    return found


@given(block=blocks())
def test_any_code_is_understood_as_the_parser_does(block: list[str]) -> None:
    source = "\n".join(block) + "\n"
    expected = by_parser(source)
    assert find_loops(source, expected) == expected


@given(st.text(alphabet="\"'\\\n\t #()[]{}:forwhiledef@\f\0é", max_size=200))
def test_any_text_has_an_answer(source: str) -> None:
    found = find_loops(source, range(-1, source.count("\n") + 3))
    assert all(loops is None or len(loops) <= MAX_LOOPS for loops in found.values())


@pytest.mark.long
@pytest.mark.parametrize(
    "unit", ['"""', "'", "\\", "(", "x\n", "\\\n", '\\"""', " \n", "for\n", "#", "\t", '""']
)
def test_a_file_made_to_be_slow_is_not(unit: str) -> None:
    source = unit * ((1 << 18) // len(unit))
    began = time.thread_time()
    find_loops(source, [1, 2, source.count("\n")])
    assert time.thread_time() - began < 5
