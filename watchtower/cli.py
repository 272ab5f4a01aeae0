"""The command line: parses, calls, prints. `watchtower serve` is the tower, the rest asks one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from watchtower import __version__
from watchtower.access.tls import TlsError
from watchtower.access.tokens import TokenError, make_token, write_token
from watchtower.access.tower_address import DEFAULT_PORT
from watchtower.alerts.settings import NAMES
from watchtower.commands import (
    acting,
    asking,
    doctoring,
    documents,
    handing_over,
    one_box,
    options,
    requeueing,
    running,
    stores,
)
from watchtower.commands.client import (
    DONE,
    INTERRUPTED,
    MEANINGS,
    NOT_WRITTEN,
    UNUSABLE,
    ClientError,
    exit_code_of,
)
from watchtower.commands.contexts import add_tower, make_client
from watchtower.commands.options import INCIDENT_HELP
from watchtower.config import TowerConfig, load_config
from watchtower.service.command_line import Parser, add_completion, add_help, name_or_id, person
from watchtower.service.daemon import log_to_stderr
from watchtower.service.settings import ConfigError

Run = Callable[[argparse.Namespace], int]


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Puts the longest name of a command and its description on one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (`commands.client`)."""
    args = make_parser().parse_args(argv)
    run: Run = args.run
    try:
        code = run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_output()  # its reader has closed it
        return DONE
    except (ClientError, ConfigError, TokenError, TlsError, OSError) as error:
        print(f"watchtower: {_describe(error)}", file=sys.stderr)
        code = exit_code_of(error)
        if code == NOT_WRITTEN:
            _drop_output()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED


def _drop_output() -> None:
    """Discard what is not written yet. Python would try to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _describe(error: Exception) -> str:
    """Return what an error says, without the number of an error of the system."""
    if exit_code_of(error) == NOT_WRITTEN and isinstance(error, OSError):
        return f"cannot write the output: {error.strerror}"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"cannot open {str(error.filename)!r}: {error.strerror}"
    return str(error)


def make_parser() -> Parser:
    """Describe every command."""
    codes = "\n".join(f"  {code:<4} {text}" for code, text in MEANINGS.items())
    parser = Parser(
        prog="watchtower",
        description="Shows which rank hung a distributed training job, where and why.",
        epilog=f"exit codes:\n{codes}\n\n`watchtower help COMMAND` describes a command.",
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=f"watchtower {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> Parser:
        command: Parser = commands.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}."
        )
        command.set_defaults(parser=command)
        return command

    one_box.add_up(add("up", "run a tower and an agent for the jobs of this machine"))
    _add_serve(add("serve", "run the tower"))
    _add_jobs(add("jobs", "list the jobs that agents report"))
    _add_nodes(add("nodes", "list the nodes with their agents, the worst first"))
    _add_why(add("why", "show which rank hung a job, where and why"))
    _add_stacks(add("stacks", "dump a job now and show its stacks, merged over ranks"))
    _add_incidents(add("incidents", "list incidents, newest first"))
    _add_outages(add("outages", "list outages: jobs that hang on one mount, node or address"))
    _add_advisories(add("advisories", "list what is wrong with jobs and nodes before a job hangs"))
    _add_doctor(add("doctor", "check a job and its nodes: what is wrong, and the first moves"))
    _add_incident(add("incident", "show one incident with its stacks"))
    documents.add_export(add("export", "write an incident with its evidence to a file"))
    documents.add_postmortem(add("postmortem", "write the post-mortem of an incident"))
    acting.add_feedback(add("feedback", "answer whether the verdict of an incident was right"))
    _add_calibration(add("calibration", "show how often verdicts were right, by confidence"))
    _add_replay(add("replay", "decide again: about an exported incident, or a recording"))
    options.add_diagnose(
        add(
            "diagnose",
            "diagnose snapshots, or files of a hung job; asks no tower",
        )
    )
    _add_silence(add("silence", "silence the alerts of a job, node or user for a while"))
    _add_silences(add("silences", "list the jobs, nodes and users that are silenced"))
    _add_ack(add("ack", "acknowledge an incident, which ends its alert"))
    running.add_run(add("run", "run a training command, and write the verdict into its log"))
    requeueing.add_requeue(add("requeue", "start a hung job of Slurm again without its suspect"))
    handing_over.add_condition(
        add("condition", "whether an incident asks for a node to be drained")
    )
    _add_alert(add("alert", "send a test message to a destination of alerts"))
    documents.add_mcp(add("mcp", "serve tools for language models over stdin and stdout (MCP)"))
    stores.add_store(add("store", "copy what a tower has kept to another database, or check it"))
    _add_token(add("token", "make a random token"))
    _add_drill(add("drill", "hang a small job on purpose and check what the tower answers"))
    add_completion(add("completion", "print a completion script for a shell"), parser)
    add_help(add("help", "describe a command"), parser, commands)
    return parser


def _add_serve(parser: Parser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML settings")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, help=f"port to listen on, 0 for a free one (default {DEFAULT_PORT})"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder of the incidents")
    parser.add_argument(
        "--database", metavar="URL", help="PostgreSQL to keep them in: postgresql://USER@HOST/NAME"
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="allow an address other than loopback without tokens",
    )
    for scope in ("agent", "reader", "operator"):
        parser.add_argument(
            f"--{scope}-token-file", metavar="FILE", help=f"tokens of {scope}s, one a line"
        )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="its key (PEM, without a password)")
    parser.add_argument(
        "--public-url", metavar="URL", help="address of the tower for people, shown in alerts"
    )
    parser.add_argument(
        "--record", metavar="FILE", help="record every input to a new file, for `watchtower replay`"
    )
    parser.add_argument(
        "--log-json", action="store_true", default=None, help="write the log as lines of JSON"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="only check the settings, and the files of tokens, certificates and secrets",
    )
    parser.set_defaults(run=_serve)


def _serve(args: argparse.Namespace) -> int:
    from watchtower.app import check, serve
    from watchtower.store.protocol import StoreError

    flags = {item.name: getattr(args, item.name, None) for item in fields(TowerConfig)}
    config = load_config(args.config, flags)
    if args.check:
        for warning in check(config):
            print(f"warning: {warning}")
        print("the settings are valid")
        return DONE
    log_to_stderr(as_json=config.log_json)
    try:
        serve(config)
    except StoreError as error:
        print(f"watchtower: {error}", file=sys.stderr)
        return UNUSABLE
    return DONE


def _add_jobs(parser: Parser) -> None:
    options.add_status(parser, "jobs")
    _add_drills(parser)
    add_tower(parser)
    options.add_form(parser)
    _add_watch(parser)
    parser.set_defaults(run=lambda args: asking.show_jobs(make_client(args), args))


def _add_nodes(parser: Parser) -> None:
    parser.add_argument("--limit", type=int, default=100, help="how many (default 100)")
    add_tower(parser)
    options.add_form(parser)
    _add_watch(parser)
    parser.set_defaults(run=lambda args: asking.show_nodes(make_client(args), args))


def _add_why(parser: Parser) -> None:
    parser.add_argument(
        "job",
        nargs="?",
        type=name_or_id,
        help="name of the job, or its name or id in the scheduler; "
        "default: every job in trouble, or the only job",
    )
    add_tower(parser)
    _add_json(parser)
    once = parser.add_mutually_exclusive_group()
    _add_watch(once)
    once.add_argument(
        "--exit-code",
        action="store_true",
        help="exit with 1 if the job is in trouble, with 6 if it is not judged yet",
    )
    options.add_now(parser)

    def run(args: argparse.Namespace) -> int:
        if not args.now:
            return asking.show_verdict(make_client(args), args)
        from watchtower.commands.examining import show_verdict_now

        if args.job is None or args.watch:
            parser.error("--now needs JOB, and is not allowed with --watch")
        return show_verdict_now(make_client(args, options.EXAMINE_TIMEOUT_S), args)

    parser.set_defaults(run=run)


def _add_stacks(parser: Parser) -> None:
    options.add_stacks(parser)
    add_tower(parser)
    _add_json(parser)

    def run(args: argparse.Namespace) -> int:
        from watchtower.commands.examining import show_stacks

        return show_stacks(make_client(args, options.EXAMINE_TIMEOUT_S), args)

    parser.set_defaults(run=run)


def _add_incidents(parser: Parser) -> None:
    options.add_filters(parser)
    parser.add_argument("--limit", type=int, default=20, help="how many (default 20)")
    _add_drills(parser)
    add_tower(parser)
    options.add_form(parser)
    _add_watch(parser)
    parser.set_defaults(run=lambda args: asking.show_incidents(make_client(args), args))


def _add_outages(parser: Parser) -> None:
    add_tower(parser)
    options.add_form(parser, "wide")
    _add_watch(parser)
    parser.set_defaults(run=lambda args: asking.show_outages(make_client(args), args))


def _add_advisories(parser: Parser) -> None:
    parser.add_argument("job", nargs="?", type=name_or_id, help="only of this job and its nodes")
    parser.add_argument("--node", type=name_or_id, help="only of this node")
    parser.add_argument("--exit-code", action="store_true", help="return 1 if there is an advisory")
    _add_drills(parser)
    add_tower(parser)
    options.add_form(parser, "wide", "name")
    _add_watch(parser)
    parser.set_defaults(run=lambda args: asking.show_advisories(make_client(args), args))


def _add_doctor(parser: Parser) -> None:
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("job", nargs="?", type=name_or_id, help="name or scheduler id of the job")
    asked.add_argument(
        "--between",
        nargs=2,
        type=name_or_id,
        metavar="NODE",
        help="test the path between two nodes with small and with large packets",
    )
    parser.add_argument(
        "--through",
        default=doctoring.THROUGH,
        metavar="COMMAND",
        help="starts a command on a node, for --between, such as "
        "'srun -N1 -n1 --overlap -w {node}' (default: '%(default)s')",
    )
    parser.add_argument(
        "--interface", default="", metavar="NAME", help="only to this one of the second node"
    )
    add_tower(parser)
    _add_json(parser)
    parser.set_defaults(run=_run_doctor)


def _run_doctor(args: argparse.Namespace) -> int:
    if args.between:
        return doctoring.show_path(args)
    return doctoring.show_doctor(make_client(args), args)


def _add_incident(parser: Parser) -> None:
    parser.add_argument("incident", type=name_or_id, help=INCIDENT_HELP)
    add_tower(parser)
    _add_json(parser)
    _add_watch(parser)
    parser.set_defaults(run=lambda args: asking.show_incident(make_client(args), args))


def _add_calibration(parser: Parser) -> None:
    add_tower(parser)
    _add_json(parser)
    parser.set_defaults(run=lambda args: asking.show_calibration(make_client(args), args))


def _add_replay(parser: Parser) -> None:
    parser.add_argument("file", type=Path, help="file of `watchtower export` or `serve --record`")
    parser.add_argument(
        "--json", action="store_true", help="print both verdicts, or every effect, as JSON"
    )

    def run(args: argparse.Namespace) -> int:
        from watchtower.commands.replaying import replay

        return replay(args)

    parser.set_defaults(run=run)


def _add_silence(parser: Parser) -> None:
    acting.add_names(parser)
    acting.add_length(parser)
    add_tower(parser)
    _add_json(parser)

    def run(args: argparse.Namespace) -> int:
        acting.check_arguments(parser, args)
        return acting.silence(make_client(args), args)

    parser.set_defaults(run=run)


def _add_silences(parser: Parser) -> None:
    add_tower(parser)
    options.add_form(parser, "wide")
    _add_watch(parser)
    parser.set_defaults(run=lambda args: asking.show_silences(make_client(args), args))


def _add_ack(parser: Parser) -> None:
    named = parser.add_mutually_exclusive_group(required=True)
    named.add_argument("incident", nargs="?", type=name_or_id, help=INCIDENT_HELP)
    named.add_argument(
        "--outage",
        type=name_or_id,
        metavar="ID",
        help="acknowledge all open incidents of an outage",
    )
    parser.add_argument(
        "--by",
        type=person,
        metavar="NAME",
        help="the person who works on it (default: your user name)",
    )
    parser.add_argument("--note", default="", metavar="TEXT", help="shown with the incident")
    add_tower(parser)
    _add_json(parser)

    def run(args: argparse.Namespace) -> int:
        args.by = acting.user_name() if args.by is None else args.by
        if args.outage is not None:
            return acting.ack_outage(make_client(args), args)
        return acting.ack(make_client(args), args)

    parser.set_defaults(run=run)


def _add_alert(parser: Parser) -> None:
    parser.add_argument("action", choices=("test",), help="send a test message")
    parser.add_argument("destination", choices=NAMES, help="where to send it")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML settings of the tower")

    def run(args: argparse.Namespace) -> int:
        from watchtower.commands.alerting import send_test

        return send_test(args.destination, load_config(args.config, {}).alerts)

    parser.set_defaults(run=run)


def _add_drills(parser: Parser) -> None:
    parser.add_argument("--drills", action="store_true", help="also list jobs of drills")


def _add_watch(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--watch", action="store_true", help="ask again every second, until Ctrl-C")


def _add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print the answer of the API, as JSON")


def _add_token(parser: Parser) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        help="file to add the token to; it is made readable by its owner only "
        "(default: print the token)",
    )
    parser.set_defaults(run=_token)


def _token(args: argparse.Namespace) -> int:
    if args.file:
        write_token(args.file)
        print(f"{args.file}: a new token is its last line")
    else:
        print(make_token())
    return DONE


def _add_drill(parser: Parser) -> None:
    from watchtower.drills import command

    def run(args: argparse.Namespace) -> int:
        from watchtower.commands.alerting import find_destination

        if args.notify and not find_destination(args.notify, load_config(args.config, {}).alerts):
            return UNUSABLE
        return command.run(args)

    command.add_arguments(parser)
    parser.set_defaults(run=run)
