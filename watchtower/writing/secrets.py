"""Hides what looks like a secret in lines that a program has written.

No pattern hides every secret. Standard library only: child processes use it.
"""

from __future__ import annotations

import re

HIDDEN = "[hidden]"

_NAMED = re.compile(
    r"(?i)((?:passw(?:or)?d|secret|token(?!s)|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credential|authorization)[\w-]{0,32}[\"']?\s{0,4}[=:]\s{0,4}[\"']?)"
    r"(?!\d[\d.,]{0,32}(?:\s|$))[^\s\"',;]{3,512}"
)
"""A name of a secret and its value. A plain number is not a secret: "token: 4096"."""

_BEARER = re.compile(r"(?i)\b(bearer|basic)\s{1,4}[\w.~+/=-]{8,512}")
_KNOWN = re.compile(
    r"\b(?:hf_|gh[oprsu]_|github_pat_|glpat-|sk-|xox[abeprs]-|AKIA|ASIA|eyJ)[\w.~+/=-]{8,512}"
)
"""Tokens that their first letters give away, as services document them."""

_IN_URL = re.compile(r"(://)[^/\s@]{1,256}@")
_QUERY = re.compile(r"(?i)([?&](?:sig|signature|x-amz-[a-z-]{1,32}|key|code)=)[^\s&]{1,512}")


def hide_secrets(text: str) -> str:
    """Return a line without what looks like a secret."""
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = _KNOWN.sub(HIDDEN, text)
    text = _NAMED.sub(rf"\1{HIDDEN}", text)
    text = _QUERY.sub(rf"\1{HIDDEN}", text)
    return _IN_URL.sub(rf"\1{HIDDEN}@", text)
