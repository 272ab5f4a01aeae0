"""The command lines of tower and agent: a parser whose errors suggest a similar word, and the
commands `help` and `completion`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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


SHELLS = ("bash", "zsh", "fish")

_UNSAFE = re.compile(r"[^A-Za-z0-9 .,:/=+@%_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a command."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command with what may follow it."""

    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...]
    """Values of its positional arguments where these are one of a list."""


def list_commands(parser: argparse.ArgumentParser) -> list[Command]:
    """Return the commands of a parser that has one level of subparsers."""
    commands = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            commands += [
                _describe(name, helps.get(name, ""), each) for name, each in action.choices.items()
            ]
    return commands


def _describe(name: str, help_text: str, parser: argparse.ArgumentParser) -> Command:
    options, words = [], list[str]()
    for action in parser._actions:
        if not action.option_strings:
            words += map(str, action.choices or ())
        elif action.help is not argparse.SUPPRESS:
            option = Option(
                names=tuple(action.option_strings),
                help=_expand(parser, action),
                takes_value=action.nargs != 0,
                choices=tuple(map(str, action.choices or ())),
            )
            options.append(option)
    return Command(name=name, help=help_text, options=tuple(options), words=tuple(words))


def _expand(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def write_script(shell: str, program: str, commands: Sequence[Command]) -> str:
    """Return the completion script of a program for one of `SHELLS`."""
    writers = {"bash": _write_bash, "zsh": _write_zsh, "fish": _write_fish}
    return "\n".join(writers[shell](program, commands)) + "\n"


def _write_bash(program: str, commands: Sequence[Command]) -> Iterator[str]:
    function = "_" + program.replace("-", "_")
    yield f"# Completion of {program} for bash: source <({program} completion bash)"
    yield f"{function}() {{"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '    local command="${COMP_WORDS[1]}" options="" words=""'
    yield "    COMPREPLY=()"
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    names = " ".join(each.name for each in commands)
    yield f'        COMPREPLY=($(compgen -W "{names} --help --version" -- "$word"))'
    yield "        return"
    yield "    fi"
    yield '    case "$command $before" in'
    for command in commands:
        for option in command.options:
            if option.takes_value:
                patterns = " | ".join(
                    f"{_quote(f'{command.name} {name}')}" for name in option.names
                )
                yield f"        {patterns})"
                choices = " ".join(option.choices)
                yield f'            COMPREPLY=($(compgen -W "{choices}" -- "$word")); return ;;'
    yield "    esac"
    yield '    case "$command" in'
    for command in commands:
        options = " ".join(name for option in command.options for name in option.names)
        words = " ".join(command.words)
        yield f'        {command.name}) options="{options}" words="{words}" ;;'
    yield "    esac"
    yield '    case "$word" in'
    yield '        -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;'
    yield '        *) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;'
    yield "    esac"
    yield "}"
    yield f"complete -o default -F {function} {program}"


def _write_zsh(program: str, commands: Sequence[Command]) -> Iterator[str]:
    function = "_" + program.replace("-", "_")
    yield f"#compdef {program}"
    yield f"# Completion of {program} for zsh: source <({program} completion zsh)"
    yield f"{function}() {{"
    yield "    local -a commands"
    yield "    commands=("
    for command in commands:
        yield f"        {_quote(f'{command.name}:{_safe(command.help)}')}"
    yield "    )"
    yield "    if (( CURRENT == 2 )); then"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"
    yield '    case "$words[2]" in'
    for command in commands:
        words = f"({' '.join(command.words)})" if command.words else "_files"
        specs = [_quote(f"*:value:{words}")]
        for option in command.options:
            value = f":value:{f'({chr(32).join(option.choices)})' if option.choices else '_files'}"
            for name in option.names:
                tail = value if option.takes_value else ""
                specs.append(_quote(f"{name}[{_safe(option.help)}]{tail}"))
        yield f"        {command.name}) _arguments {' '.join(specs)} ;;"
    yield "    esac"
    yield "}"
    yield f"compdef {function} {program}"


def _write_fish(program: str, commands: Sequence[Command]) -> Iterator[str]:
    yield f"# Completion of {program} for fish: {program} completion fish | source"
    for command in commands:
        first = f"complete -c {program} -f -n __fish_use_subcommand"
        yield f"{first} -a {command.name} -d {_quote(_safe(command.help))}"
    for command in commands:
        after = f"complete -c {program} -n {_quote(f'__fish_seen_subcommand_from {command.name}')}"
        if command.words:
            yield f"{after} -f -a {_quote(' '.join(command.words))}"
        for option in command.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            value = " -r" if option.takes_value else ""
            value += f" -a {_quote(' '.join(option.choices))}" if option.choices else ""
            yield f"{after} {names}{value} -d {_quote(_safe(option.help))}"


def _quote(text: str) -> str:
    return f"'{text}'"


def _safe(text: str) -> str:
    """Return a description without characters that a shell gives a meaning."""
    return " ".join(_UNSAFE.sub(" ", text).split())


def add_completion(parser: Parser, whole: Parser) -> None:
    """Make `parser` the command that prints a completion script of the program `whole`."""
    parser.add_argument("shell", choices=SHELLS, help="shell to print a script for")

    def run(args: argparse.Namespace) -> int:
        print(write_script(args.shell, whole.prog, list_commands(whole)), end="")
        return 0

    parser.set_defaults(run=run)


def add_help(parser: Parser, whole: Parser, commands: argparse._SubParsersAction[Parser]) -> None:
    """Make `parser` the command that describes the commands of the program `whole`."""
    parser.add_argument(
        "topic",
        nargs="?",
        metavar="COMMAND",
        choices=list(commands.choices),
        help="the command to describe (default: list all commands)",
    )

    def run(args: argparse.Namespace) -> int:
        chosen = commands.choices[args.topic] if args.topic else whole
        chosen.print_help()
        return 0

    parser.set_defaults(run=run)
