"""The kinds of failure in what py-spy prints."""

from __future__ import annotations

import pytest

from agent.children import Outcome
from agent.dumpers.python_stacks import explain
from watchtower.wire.dumps import FailureKind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Permission Denied: Try running again with elevated permissions", FailureKind.REFUSED),
        ("Error: x\n\nCaused by:\n 0: Permission denied (os error 13)", FailureKind.REFUSED),
        ("Caused by:\n    0: No such file or directory (os error 2)", FailureKind.GONE),
        ("Error: Failed to find python version from target process", FailureKind.UNSUPPORTED),
        ("Error: something new", FailureKind.OTHER),
        ("", FailureKind.OTHER),
    ],
)
def test_what_py_spy_says_becomes_a_kind(text: str, kind: FailureKind) -> None:
    failure = explain(Outcome(code=1, output=b"", errors=text.encode()))
    assert failure.kind is kind
    assert failure.help_text
