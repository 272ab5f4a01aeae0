"""The command line: parses, calls, prints. `watchtower serve` is the tower, the rest asks one."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from watchtower import __version__
from watchtower.access.tls import CA_VARIABLE, TlsError
from watchtower.access.tokens import (
    FILE_VARIABLE,
    TokenError,
    find_client_token,
    make_token,
    write_token,
)
from watchtower.access.tower_address import DEFAULT_PORT
from watchtower.commands import asking, muting
from watchtower.commands.client import ClientError, TowerClient
from watchtower.config import TowerConfig, load_config
from watchtower.log_limit import LogLimit
from watchtower.settings_file import ConfigError

Run = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (0 done, 1 a finding or refusal, 2 not usable)."""
    args = make_parser().parse_args(argv)
    run: Run = args.run
    try:
        return run(args)
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not try to write the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ClientError, ConfigError, TokenError, TlsError, OSError) as error:
        print(f"watchtower: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def make_parser() -> argparse.ArgumentParser:
    """Describe every command."""
    parser = argparse.ArgumentParser(
        prog="watchtower",
        description="Names the rank that hung a distributed training job, where and why.",
    )
    parser.add_argument("--version", action="version", version=f"watchtower {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="run the tower"))
    _add_jobs(commands.add_parser("jobs", help="list the jobs agents report"))
    _add_why(commands.add_parser("why", help="say who hung a job, where and why"))
    _add_incidents(commands.add_parser("incidents", help="list incidents, newest first"))
    _add_incident(commands.add_parser("incident", help="show one incident with its stacks"))
    _add_export(commands.add_parser("export", help="write an incident with its evidence to a file"))
    _add_replay(commands.add_parser("replay", help="diagnose an exported incident again"))
    _add_mute(commands.add_parser("mute", help="let a job page nobody for a while"))
    _add_unmute(commands.add_parser("unmute", help="let a job page again"))
    _add_ack(commands.add_parser("ack", help="say that somebody looks after an incident"))
    _add_token(commands.add_parser("token", help="make a token that nobody guesses"))
    _add_drill(commands)
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML settings")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, help=f"port, 0 picks a free one (default {DEFAULT_PORT})"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="where incidents are kept")
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="allow another address than loopback although nothing is protected by tokens",
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
    parser.set_defaults(run=_serve)


def _serve(args: argparse.Namespace) -> int:
    from watchtower.app import serve
    from watchtower.store.migrations import StoreError

    flags = {item.name: getattr(args, item.name, None) for item in fields(TowerConfig)}
    config = load_config(args.config, flags)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogLimit())
    try:
        serve(config)
    except StoreError as error:
        print(f"watchtower: {error}", file=sys.stderr)
        return 2
    return 0


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    _add_asking(parser)
    parser.set_defaults(run=lambda args: asking.show_jobs(_client(args), args))


def _add_why(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "job", nargs="?", help="name of the job; when left out, those in trouble, or the only one"
    )
    _add_asking(parser)
    parser.set_defaults(run=lambda args: asking.show_verdict(_client(args), args))


def _add_incidents(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", help="only incidents of this job")
    parser.add_argument("--limit", type=int, default=20, help="how many (default 20)")
    _add_asking(parser)
    parser.set_defaults(run=lambda args: asking.show_incidents(_client(args), args))


def _add_incident(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("incident", help="id of the incident")
    _add_asking(parser)
    parser.set_defaults(run=lambda args: asking.show_incident(_client(args), args))


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("incident", help="id of the incident")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: print it")
    _add_tower(parser)
    parser.set_defaults(run=lambda args: asking.export(_client(args), args))


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="what `watchtower export` wrote")
    parser.add_argument("--json", action="store_true", help="print both verdicts as JSON")

    def run(args: argparse.Namespace) -> int:
        from watchtower.commands.replaying import replay

        return replay(args)

    parser.set_defaults(run=run)


def _add_mute(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="name of the job; it need not run yet")
    parser.add_argument(
        "--for",
        dest="for_s",
        type=muting.duration,
        required=True,
        metavar="DURATION",
        help="how long, such as 30m, 2h or 1d",
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="shown with the job")
    _add_tower(parser)
    parser.set_defaults(run=lambda args: muting.mute(_client(args), args))


def _add_unmute(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="name of the job")
    _add_tower(parser)
    parser.set_defaults(run=lambda args: muting.unmute(_client(args), args))


def _add_ack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("incident", help="id of the incident")
    parser.add_argument("--by", default="", metavar="NAME", help="who looks after it")
    parser.add_argument("--note", default="", metavar="TEXT", help="kept with the incident")
    _add_tower(parser)
    parser.set_defaults(run=lambda args: muting.ack(_client(args), args))


def _add_asking(parser: argparse.ArgumentParser) -> None:
    _add_tower(parser)
    parser.add_argument("--watch", action="store_true", help="ask again every second, until Ctrl-C")


def _add_tower(parser: argparse.ArgumentParser) -> None:
    default = os.environ.get("WATCHTOWER_URL", f"http://127.0.0.1:{DEFAULT_PORT}")
    parser.add_argument("--tower", default=default, metavar="URL", help=f"default {default}")
    parser.add_argument("--token-file", default="", metavar="FILE", help=f"or ${FILE_VARIABLE}")
    parser.add_argument(
        "--ca-file",
        default=os.environ.get(CA_VARIABLE, ""),
        metavar="FILE",
        help=f"authorities to trust instead of the system's; or ${CA_VARIABLE}",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="send the token over plain http:// all the same"
    )
    parser.add_argument("--json", action="store_true", help="print what the API answers")


def _client(args: argparse.Namespace) -> TowerClient:
    token = find_client_token(args.token_file, os.environ)
    return TowerClient(args.tower, token=token, ca_file=args.ca_file, insecure=args.insecure)


def _add_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", help="add it to this file, made for its owner alone; else it is printed"
    )
    parser.set_defaults(run=_token)


def _token(args: argparse.Namespace) -> int:
    if args.file:
        write_token(args.file)
        print(f"{args.file}: a new token is its last line")
    else:
        print(make_token())
    return 0


def _add_drill(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("drill", help="hang a small job on purpose and watch the tower")
    from watchtower.drills import command

    command.add_arguments(parser)
    parser.set_defaults(run=command.run)
