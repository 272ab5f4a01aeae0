"""`watchtower store`: copies what a tower has kept to another database, and checks it."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from watchtower.alerts.settings import read_secret
from watchtower.commands.client import DONE, TROUBLE, ClientError

if TYPE_CHECKING:
    from watchtower.service.command_line import Parser

USES = {"copy": 2, "check": 1}
"""Addresses of each action."""


def add_store(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("action", choices=tuple(USES), help="what to do")
    parser.add_argument(
        "address",
        nargs="+",
        help="a file such as watchtower-data/watchtower.db, or postgresql://USER@HOST/NAME: "
        "`copy FROM TO`, `check ADDRESS`",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from watchtower.store.protocol import StoreError  # noqa: PLC0415 (no other command needs it)

    number = USES[args.action]
    if len(args.address) != number:
        args.parser.error(f"`{args.action}` needs {number} address{'es' if number > 1 else ''}")
    password = read_secret("database_password_file", "")
    try:
        if args.action == "copy":
            return _copy(args.address[0], args.address[1], password)
        return _check(args.address[0], password)
    except StoreError as error:
        raise ClientError(str(error)) from None


def _copy(source: str, target: str, password: str) -> int:
    from watchtower.store.copying import copy  # noqa: PLC0415
    from watchtower.store.opening import open_store  # noqa: PLC0415

    with (
        contextlib.closing(open_store(source, password=password)) as from_,
        contextlib.closing(open_store(target, password=password)) as to,
    ):
        if from_.set_aside:
            raise ClientError(f"{source} is damaged; it was moved to {from_.set_aside}")
        for table, rows in copy(from_, to):
            print(f"{table:12} {rows:8} rows")
    print("all is copied; what was in the target already was not changed")
    return DONE


def _check(address: str, password: str) -> int:
    from watchtower.store.copying import check, open_for_reading  # noqa: PLC0415

    code = DONE
    with open_for_reading(address, password) as db:
        for table, rows, bad in check(db):
            print(f"{table:12} {rows:8} rows{f', {len(bad)} cannot be read' if bad else ''}")
            for line in bad[:10]:
                print(f"  {line}")
            code = TROUBLE if bad else code
    return code
