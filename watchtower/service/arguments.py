"""An argument parser whose errors suggest a similar word; for the commands and the agent."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

MAX_COMPARED = 64
"""Characters of a word. A longer word is not compared with the known words."""


def suggest(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'jobs'?"; "" if no known word is similar."""
    if len(word) > MAX_COMPARED:
        return ""
    names = {name.lower(): name for name in known if len(name) <= MAX_COMPARED}
    close = get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return f" Did you mean {names[close[0]]!r}?" if close else ""


def name_or_id(text: str) -> str:
    """Check a name or an id; for argparse."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is empty: give a name or an id")
    return text


def person(text: str) -> str:
    """Check the name of a person; for argparse."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is empty: give a name, or leave the option out")
    return text


class Parser(argparse.ArgumentParser):
    """An argparse parser with suggestions. Its subparsers have the same class."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Return the arguments. Exit with status 2 and a suggestion if one is unknown."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = getattr(found, "parser", self)
            parser.refuse_unknown(unknown[0])
        return found

    def refuse_unknown(self, word: str) -> NoReturn:
        """Exit with status 2 and a suggestion for the unknown argument `word`."""
        name = word.partition("=")[0]
        options = [option for action in self._actions for option in action.option_strings]
        what = "option" if word.startswith("-") else "argument"
        hint = suggest(name, [*options, "--help"]) if word.startswith("-") else ""
        self.error(f"unknown {what} {name!r}.{hint or f' See `{self.prog} --help`.'}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a value that must be in a list. argparse calls this method for each such value."""
        choices = action.choices
        if choices is None or value in choices:
            return
        known = [str(choice) for choice in choices]
        hint = suggest(str(value), known)
        if isinstance(action, argparse._SubParsersAction):
            hint = hint or f" See `{self.prog} --help`."
            self.error(f"unknown command {str(value)!r}.{hint}")
        raise argparse.ArgumentError(
            action, f"invalid value {str(value)!r}: use {' or '.join(known)}.{hint}"
        )
