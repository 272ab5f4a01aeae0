"""Options of all commands that ask a tower, and the client that they describe."""

from __future__ import annotations

import argparse
import os

from watchtower.access.tls import CA_VARIABLE
from watchtower.access.tokens import FILE_VARIABLE, VARIABLE, find_client_token
from watchtower.access.tower_address import (
    LOCAL_URL,
    URL_VARIABLE,
    AddressError,
    check_tower_url,
)
from watchtower.commands.client import TIMEOUT_S, TowerClient
from watchtower.service.command_line import Parser

INCIDENT_HELP = "id of the incident, or the beginning of it if no other id begins so"


def add_tower(parser: Parser) -> None:
    """Add the options that name the tower and the token."""
    parser.add_argument(
        "--tower",
        default=os.environ.get(URL_VARIABLE) or LOCAL_URL,
        type=_tower_url,
        metavar="URL",
        help=f"address of the tower (default: ${URL_VARIABLE}, else {LOCAL_URL})",
    )
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help=f"file with a token (default: ${FILE_VARIABLE}; or a token in ${VARIABLE})",
    )
    parser.add_argument(
        "--ca-file",
        default=os.environ.get(CA_VARIABLE, ""),
        metavar="FILE",
        help=f"authorities to trust (default: ${CA_VARIABLE}, else the authorities of the system)",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="send the token over plain http:// anyway"
    )


def _tower_url(text: str) -> str:
    try:
        return check_tower_url(text)
    except AddressError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def make_client(args: argparse.Namespace, timeout_s: float = TIMEOUT_S) -> TowerClient:
    """Return a client for the options. Raises ClientError, TokenError, TlsError."""
    token = find_client_token(args.token_file, os.environ)
    return TowerClient(
        args.tower, timeout_s, token=token, ca_file=args.ca_file, insecure=args.insecure
    )
