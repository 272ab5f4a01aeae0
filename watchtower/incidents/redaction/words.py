"""Replaces the words of a text that are not public. Equal words stay equal, others stay different.

The separators stay, so that paths keep their shape and patterns of names still match: the class of
`save_acme_checkpoint` depends on `save` and `checkpoint`, and not on the word between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from watchtower.evidence.facts import read_facts
from watchtower.service.toml_tables import read_table

TABLES = ("error_texts", "file_systems", "frame_classes", "kernel_waits", "wait_places")
"""Tables of patterns whose words are kept."""

OUR_WORDS = frozenset({"advice", "blames", "example", "means", "name", "says", "strength", "why"})
"""Keys of these tables whose words are ours, not those of other software."""

SHORTEST = 2
"""Letters of the shortest word that is replaced. One letter names nothing."""

SMALL = 3
"""Digits of the shortest number that is replaced: smaller ones count ranks, workers and steps."""

FIRST_NUMBER = 1000
"""The first number that replaces another one."""

ENDINGS = ("ing", "ers", "er", "ed", "s")
"""Endings of a word that is kept without them."""

IPV4, IPV6 = int(IPv4Address("198.18.0.0")), int(IPv6Address("2001:db8::"))
"""Addresses for tests and documents (RFC 2544, RFC 3849) replace others."""

MAX_IPV4 = 2**17
"""Number of IPv4 addresses in that range. A job of more nodes has equal placeholders."""

_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|\[?[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}\]?)(?![\w.])"
)
_TOKEN = re.compile(r"[^\W_]+")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_LETTERS = re.compile(r"[A-Za-z]{2,}")
_SHORT_HEX = re.compile(r"0x[0-9a-fA-F]{1,2}\Z")


def _read_words() -> dict[str, frozenset[str]]:
    lists = read_table("watchtower.incidents.redaction", "public_words")
    return {name: frozenset(words.split()) for name, words in lists.items()}


_LISTS = _read_words()
PACKAGES = _LISTS.pop("packages")


def _words_of_tables() -> Iterator[str]:
    for name in TABLES:
        for entries in read_facts(name).values():
            for entry in entries:
                for key, value in entry.items():
                    if key not in OUR_WORDS:
                        yield from _LETTERS.findall(str(value).replace("\\", " \\ "))


PUBLIC = frozenset(
    part.lower()
    for word in (*_words_of_tables(), *frozenset().union(*_LISTS.values()))
    for part in (word, *_WORD.findall(word))
)
"""Words that are kept, in lower case."""


@lru_cache(maxsize=65_536)
def is_public(word: str) -> bool:
    """Return whether a word is kept."""
    lower = word.lower()
    if len(lower) < SHORTEST or lower in PUBLIC or f"{lower}s" in PUBLIC:
        return True
    return any(
        lower.endswith(ending) and lower[: -len(ending)] in PUBLIC
        for ending in ENDINGS
        if len(lower) > len(ending) + SHORTEST
    )


class Words:
    """The words, numbers and addresses that were replaced so far."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._numbers: dict[str, str] = {}
        self._addresses: dict[str, str] = {}

    def redact(self, text: str, limit: int = 128) -> str:
        """Return a text without words that are not public.

        It is at most as long as the text, or `limit` characters if that is more.
        """
        pieces, last = [], 0
        for found in _ADDRESS.finditer(text):
            address = self._replace_address(found[0])
            if address is not None:
                pieces += [self._redact_words(text[last : found.start()]), address]
                last = found.end()
        pieces.append(self._redact_words(text[last:]))
        return "".join(pieces)[: max(len(text), limit)]

    def _redact_words(self, text: str) -> str:
        return _TOKEN.sub(lambda found: self._redact_token(found[0]), text)

    def _redact_token(self, token: str) -> str:
        if _SHORT_HEX.fullmatch(token) or is_public(token):
            return token
        parts = _WORD.findall(token)
        if "".join(parts) != token or not any(map(is_public, parts)):
            return self._replace_number(token) if token.isdecimal() else self._replace(token)
        return "".join(map(self._redact_part, parts))

    def _redact_part(self, part: str) -> str:
        if part.isdecimal():
            return self._replace_number(part)
        return part if is_public(part) else self._replace(part)

    def _replace(self, word: str) -> str:
        return self._words.setdefault(word, f"x{len(self._words) + 1}")

    def _replace_number(self, number: str) -> str:
        if len(number) < SMALL:
            return number
        return self._numbers.setdefault(number, str(FIRST_NUMBER + len(self._numbers)))

    def _replace_address(self, text: str) -> str | None:
        """Return the placeholder of an address; None if the text is not an address."""
        bare = text.removeprefix("[").removesuffix("]")
        try:
            address = ip_address(bare)
        except ValueError:
            return None
        if address.is_loopback or address.is_unspecified:
            return text
        number = self._addresses.get(str(address))
        if number is None:
            count = len(self._addresses) + 1
            is_old = isinstance(address, IPv4Address)
            number = str(
                IPv4Address(IPV4 + count % MAX_IPV4) if is_old else IPv6Address(IPV6 + count)
            )
            self._addresses[str(address)] = number
        return text.replace(bare, number)
