"""The command line of the agent."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TypeVar

from agent import __version__, config
from watchtower.access.tls import TlsError, trust
from watchtower.access.tokens import TokenError, find_client_token
from watchtower.access.tower_address import (
    AddressError,
    add_tower,
    check_token_is_safe,
    default_url,
)
from watchtower.service.command_line import Parser, add_completion, add_help
from watchtower.service.daemon import LogLimit
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.series import MAX_OUTPUT_LINES

CREDENTIALS = "/run/credentials/"
CREDENTIAL_HINT = (
    "; systemd makes this file while the service runs, for root and the service: give the file of "
    "LoadCredential= with --token-file"
)
INTERRUPTED = 130
"""Exit code, as of all commands (docs/commands.md)."""
LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_PORT = 65535
STATE_VARIABLE = "STATE_DIRECTORY"
"""Set by systemd for a unit with StateDirectory=. Several folders are separated by colons."""

_Settings = TypeVar("_Settings", bound=config.NodeSettings)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `watchtower-agent`."""
    settings = parse(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogLimit())
    if isinstance(settings, config.DoctorSettings):
        from agent.doctor.command import doctor  # noqa: PLC0415 - `--help` need not wait for it

        sys.exit(doctor(settings))
    assert isinstance(settings, config.Settings)
    from agent.daemon import Agent  # noqa: PLC0415

    Agent(settings).run()
    # Threads may hang in a tower that does not answer: do not wait for them.
    sys.stdout.flush()
    logging.shutdown()
    os._exit(0)


def parse(arguments: Sequence[str]) -> config.ServiceSettings:
    """Return the settings; exits with status 2 and a message if something is wrong."""
    parser = build_parser()
    given = parser.parse_args(arguments)
    if given.command in ("help", "completion", "snapshot", "path"):
        sys.exit(given.run(given))
    file, is_doctor = "", given.command == "doctor"
    if is_doctor:
        file, options = find_service_options(parser, given)
        given.parser.set_defaults(tower=default_url())
        given = parser.parse_args(["doctor", *options, *arguments[arguments.index("doctor") + 1 :]])
    try:
        if is_doctor and given.about == "node":  # asks no tower, so that it needs no token
            given.token_file, given.tower = "", default_url()
        token = find_client_token(given.token_file, os.environ)
        if "https://" in given.tower:
            trust(given.ca_file)
        check_token_is_safe(given.tower, token, insecure=given.insecure)
    except AddressError as error:
        parser.error(str(error))
    except (TokenError, TlsError) as error:
        is_credential = given.token_file.startswith(CREDENTIALS)
        parser.error(f"{error}{CREDENTIAL_HINT if is_credential else ''}")
    if is_doctor:
        checks = tuple(given.checks or ())
        return make(config.DoctorSettings, given, token=token, settings_file=file, checks=checks)
    return make(config.Settings, given, token=token)


def make(kind: type[_Settings], given: argparse.Namespace, **more: object) -> _Settings:
    """Return settings: each field is the option with its name, unless it is in `more`."""
    options = {each.name: vars(given)[each.name] for each in fields(kind) if each.name in given}
    return kind(**{**options, **more})


def find_service_options(
    parser: argparse.ArgumentParser, given: argparse.Namespace
) -> tuple[str, list[str]]:
    """Return the environment file of the service and its options, for a check of that service.

    The default file is left out if it does not exist, or if --tower is given.
    """
    path = given.env_file or ("" if given.tower else config.DEFAULT_PATH)
    if not path:
        return "", []
    try:
        return path, config.read_options(path)
    except FileNotFoundError:
        if given.env_file:
            parser.error(f"argument --env-file: {path} does not exist")
    except config.EnvFileError as error:
        parser.error(str(error))
    return "", []


def build_parser() -> Parser:
    """Return the parser of `watchtower-agent`."""
    parser = Parser(
        prog="watchtower-agent",
        description="Watches the training ranks of this node and reports to a tower.",
        epilog="exit codes: 0 done; 1 `doctor` found a fault, or `snapshot` found no rank; "
        "2 wrong usage; 5 the output cannot be written",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="watch until SIGTERM")
    add_options(run)
    doctor = add_doctor(commands)
    text = "write what the ranks of this node do now to a file; needs no tower"
    add_snapshot(
        commands.add_parser("snapshot", help=text, description=f"{text[0].upper()}{text[1:]}.")
    )
    add_path(commands)
    shell = "print a completion script for a shell"
    add_completion(commands.add_parser("completion", help=shell), parser)
    add_help(commands.add_parser("help", help="describe a command"), parser, commands)
    for command in (run, doctor):
        command.set_defaults(parser=command)
    return parser


def add_doctor(commands: argparse._SubParsersAction[Parser]) -> Parser:
    """Add `doctor`. It has the options of a run, so that it checks the same thing."""
    text = "check whether jobs can run on this node, and what the agent can do here"
    doctor = commands.add_parser("doctor", help=text, description=f"{text[0].upper()}{text[1:]}.")
    add_options(doctor)
    add = doctor.add_argument
    add(
        "--env-file",
        metavar="FILE",
        help=f"settings of the service to check (default: {config.DEFAULT_PATH}, if it exists "
        "and --tower is not given)",
    )
    add(
        "--about",
        default="",
        choices=("node", "agent"),
        help="check only whether jobs can run here, or only what the agent can do (default: both)",
    )
    add(
        "--check",
        dest="checks",
        action="append",
        metavar="NAME",
        help="run only this check, such as mounts; can be repeated",
    )
    add(
        "--output",
        default="text",
        choices=("text", "json", "line"),
        help="form of the output; `line` is the worst result (default: %(default)s)",
    )
    add("--strict", action="store_true", help="exit with 1 also for a warning")
    doctor.set_defaults(tower=None)  # without an address, the settings of the service are read
    return doctor


def add_path(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `path`, which `watchtower doctor --between` starts on two nodes."""
    text = "test what gets through to another node; `watchtower doctor --between` starts it"
    path = commands.add_parser("path", help=text, description=f"{text[0].upper()}{text[1:]}.")
    path.add_argument(
        "--ask",
        action="store_true",
        help="test the paths to the node whose first line is on standard input; without it, answer "
        "such a test for 30 s, until standard input ends",
    )
    path.add_argument(
        "--interface", default="", metavar="NAME", help="answer only at this one (default: all)"
    )
    path.set_defaults(run=run_path)


def run_path(given: argparse.Namespace) -> int:
    """Test a path, or answer a test."""
    from agent.doctor import path  # noqa: PLC0415

    return path.run(given.interface, asks=given.ask)


class _AddMatch(argparse.Action):
    """Stores all conditions that were given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Add one. Raises ArgumentError if there are too many."""
        namespace.match = (*namespace.match, values)
        if len(namespace.match) > config.MAX_MATCHES:
            given, allowed = len(namespace.match), config.MAX_MATCHES
            raise argparse.ArgumentError(self, f"{given} given, allowed: {allowed}")


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of a run. A check has the same ones, so that it checks the same thing."""
    add = command.add_argument
    add_tower(command)
    add_reading(command)
    add(
        "--interval",
        dest="interval_s",
        default=config.DEFAULT_INTERVAL_S,
        type=interval,
        metavar="SECONDS",
        help="seconds from one report to the next (default %(default)g)",
    )
    add(
        "--host",
        dest="metrics_host",
        default=config.DEFAULT_METRICS_HOST,
        help="address of /metrics (default %(default)s)",
    )
    add(
        "--port",
        default=config.DEFAULT_PORT,
        type=number("port", MAX_PORT),
        help="port of /metrics, 0 for a free one (default %(default)s)",
    )
    add(
        "--spool-dir",
        default=state_directory(),
        metavar="DIR",
        help="folder for dumps that the tower does not have yet "
        f"(default: ${STATE_VARIABLE}, else memory)",
    )
    add(
        "--output-lines",
        default=0,
        type=number("number of lines", MAX_OUTPUT_LINES),
        metavar="N",
        help="send the last N lines (up to "
        f"{MAX_OUTPUT_LINES}) of a suspect's standard output and error, if these are files, and "
        "of all ranks those that show why a job hangs (default: 0, none)",
    )
    add("--log-level", default="info", choices=LOG_LEVELS, help="default %(default)s")


def add_reading(command: argparse.ArgumentParser) -> None:
    """Add the options that select what is read on this node."""
    add = command.add_argument
    add(
        "--node",
        default=os.uname().nodename,
        type=node_name,
        help="name of this node (default: the host's name)",
    )
    add(
        "--match",
        default=(),
        action=_AddMatch,
        type=match,
        metavar="KEY=VALUE",
        help="watch only ranks with this in their environment; can be repeated",
    )
    add(
        "--py-spy",
        default="",
        type=tool,
        metavar="FILE",
        help="py-spy to use (default: beside Python, else from PATH)",
    )
    add(
        "--root",
        default="/",
        type=root,
        metavar="DIR",
        help="folder with the proc/ of the host (default /)",
    )
    add(
        "--no-source",
        dest="read_source",
        action="store_false",
        help="read no source files; otherwise the line numbers of loops are sent with the stacks",
    )


def add_snapshot(command: argparse.ArgumentParser) -> None:
    """Add the options of a snapshot."""
    command.add_argument(
        "-o",
        "--output",
        default="",
        metavar="FILE",
        help="file to write, - for standard output (default: watchtower-snapshot-NODE.json)",
    )
    command.add_argument(
        "--logs",
        dest="read_logs",
        action="store_true",
        help="read standard output and error of the ranks, if these are files, for the lines that "
        "`watchtower diagnose` knows",
    )
    add_reading(command)
    command.set_defaults(run=run_snapshot)


def run_snapshot(given: argparse.Namespace) -> int:
    """Run `watchtower-agent snapshot`; returns its exit code."""
    try:
        from agent.snapshot.command import snapshot  # noqa: PLC0415 - `--help` need not wait for it
        from agent.snapshot.taking import SnapshotOptions  # noqa: PLC0415

        logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
        return snapshot(make(SnapshotOptions, given))
    except KeyboardInterrupt:
        return INTERRUPTED


def state_directory() -> str:
    """Return the folder that systemd made for us, empty without one."""
    return os.environ.get(STATE_VARIABLE, "").partition(":")[0]


def node_name(text: str) -> str:
    """Check `--node`."""
    if not text or len(text) > MAX_NAME or not text.isprintable():
        raise argparse.ArgumentTypeError(
            f"invalid name of a node {text!r}: must be 1 to {MAX_NAME} printable characters"
        )
    return text


def interval(text: str) -> float:
    """Check `--interval`."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not config.MIN_INTERVAL_S <= seconds <= config.MAX_INTERVAL_S:
        raise argparse.ArgumentTypeError(
            f"invalid interval {text!r}: must be {config.MIN_INTERVAL_S:g} to "
            f"{config.MAX_INTERVAL_S:g} seconds"
        )
    return seconds


def number(what: str, most: int) -> Callable[[str], int]:
    """Return the check of an option with a whole number up to `most`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) <= most):
            raise argparse.ArgumentTypeError(f"invalid {what} {text!r}: must be 0 to {most}")
        return int(text)

    return read


def match(text: str) -> tuple[str, str]:
    """Check `--match`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(
            f"invalid match {text!r}: use KEY=VALUE, such as WATCHTOWER_JOB=llama-70b"
        )
    return name, value


def tool(text: str) -> str:
    """Check `--py-spy`."""
    if text and (not os.access(text, os.X_OK) or os.path.isdir(text)):
        raise argparse.ArgumentTypeError(f"invalid tool {text!r}: must be a file that can be run")
    return text


def root(text: str) -> str:
    """Check `--root`."""
    if not os.path.isdir(os.path.join(text, "proc")):
        raise argparse.ArgumentTypeError(
            f"invalid root {text!r}: must be a folder with proc/ in it"
        )
    return text
