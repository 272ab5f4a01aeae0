"""The commands `help` and `completion`, for the command line and the agent."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from watchtower.service.arguments import Parser

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
