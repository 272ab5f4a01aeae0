"""The commands that write a document about an incident, and the tools for language models."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from watchtower.commands.client import DONE, ClientError, TowerClient
from watchtower.commands.contexts import add_tower, make_client
from watchtower.commands.options import INCIDENT_HELP
from watchtower.commands.printing import clean_lines
from watchtower.service.command_line import Parser, name_or_id


def add_export(parser: Parser) -> None:
    """Add the options of `export`."""
    parser.add_argument(
        "--redact",
        action="store_true",
        help="replace names of jobs, nodes, users, paths, addresses and programs",
    )
    _add_output(parser)
    parser.set_defaults(run=lambda args: export(make_client(args), args))


def add_postmortem(parser: Parser) -> None:
    """Add the options of `postmortem`."""
    parser.add_argument(
        "--format",
        choices=("markdown", "html"),
        help="default: html if FILE ends in .html or .htm, else markdown",
    )
    _add_output(parser)
    parser.set_defaults(run=lambda args: postmortem(make_client(args), args))


def add_mcp(parser: Parser) -> None:
    """Add the options of `mcp`."""
    add_tower(parser)
    parser.set_defaults(run=serve_tools)


def _add_output(parser: Parser) -> None:
    parser.add_argument("incident", type=name_or_id, help=INCIDENT_HELP)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: print it")
    add_tower(parser)


def export(client: TowerClient, args: argparse.Namespace) -> int:
    """Write an incident with everything that its verdict was made from."""
    bundle = client.export(args.incident, redact=args.redact)
    size = f"{len(bundle) / 1000:.0f} KB"
    _write(bundle, args.output, f"{size}. Diagnose it again: watchtower replay")
    return DONE


def postmortem(client: TowerClient, args: argparse.Namespace) -> int:
    """Write the post-mortem of an incident."""
    shape = args.format or _shape_of(args.output)
    document = clean_lines(client.postmortem(args.incident, shape))
    _write(document, args.output, f"{len(document.splitlines())} lines")
    return DONE


def _shape_of(path: Path | None) -> str:
    return "html" if path is not None and path.suffix.lower() in (".html", ".htm") else "markdown"


def serve_tools(args: argparse.Namespace) -> int:
    """Serve tools for language models until stdin ends. Raises ClientError without the SDK."""
    make_client(args)  # an unusable option fails now, not with the first call
    try:
        from watchtower.commands.mcp_server import make_server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ClientError(
            f"`watchtower mcp` needs the MCP SDK ({error}): pip install 'gpu-watchtower[mcp]'"
        ) from None
    make_server(partial(make_client, args)).run("stdio")
    return DONE


def _write(document: str, path: Path | None, what: str) -> None:
    if path is None:
        print(document)
    else:
        path.write_text(document, "utf-8")
        print(f"{path}: {what}")
