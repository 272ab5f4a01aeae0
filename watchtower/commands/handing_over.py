"""`watchtower condition`: what systems that drain nodes ask, with the exit codes of plugins."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from typing import Any

from watchtower.access.tls import TlsError
from watchtower.access.tokens import TokenError
from watchtower.commands.client import ClientError, TowerClient
from watchtower.commands.contexts import add_tower, make_client
from watchtower.commands.options import duration
from watchtower.commands.printing import clean
from watchtower.incidents.handover import Blamed, Guards, Handover, decide
from watchtower.service.command_line import Parser, name_or_id
from watchtower.wire.verdict import Domain
from watchtower.writing.times import read_time

GOOD, BAD, UNKNOWN = 0, 1, 2
"""Exit codes of a plugin of node-problem-detector. They are those of this command only."""

MAX_INCIDENTS = 50
"""Incidents of one domain that are read before an action. If there are more in a day, the guard
about the share of nodes has long held all actions."""

TIMEOUT_S = 10.0
"""Seconds for one answer: node-problem-detector ends a plugin after its own timeout."""


def add_condition(parser: Parser) -> None:
    """Add the options of `condition`."""
    add = parser.add_argument
    add(
        "--node",
        type=name_or_id,
        default=os.uname().nodename,
        help="name of the node, as its agent has it (default: the host's name)",
    )
    add_guards(parser, "gpu and node")
    add(
        "--max-nodes",
        type=_percent,
        default=Guards().max_nodes_percent,
        metavar="PERCENT",
        help="act on no more nodes than this share, but on one (default %(default)g)",
    )
    add("--observe", action="store_true", help="only print what would be done; exit with 0")
    add_tower(parser)
    parser.set_defaults(run=show_condition)


def add_guards(parser: Parser, domains: str) -> None:
    """Add the options about the verdict. `domains`: those that count by default, in words."""
    usual, add = Guards(), parser.add_argument
    add(
        "--domain",
        action="append",
        dest="domains",
        choices=[each.value for each in Domain],
        metavar="DOMAIN",
        help=f"act on verdicts of this domain; can be repeated (default: {domains})",
    )
    add(
        "--min-confidence",
        type=_share,
        default=usual.min_confidence,
        metavar="SHARE",
        help="smallest confidence of the verdict, 0 to 1 (default %(default)g)",
    )
    add(
        "--max-age",
        type=duration,
        default=usual.max_age_s,
        metavar="TIME",
        help="ignore older incidents (default 1d)",
    )
    add(
        "--settled",
        type=duration,
        default=usual.settled_s,
        metavar="TIME",
        help="wait so long after the opening, until all evidence is stored (default 60s)",
    )


def read_guards(args: argparse.Namespace, domains: frozenset[Domain]) -> Guards:
    """Return the guards that the options describe. `domains`: those that count by default."""
    return Guards(
        domains=frozenset(map(Domain, args.domains)) if args.domains else domains,
        min_confidence=args.min_confidence,
        max_age_s=args.max_age,
        settled_s=args.settled,
    )


def show_condition(args: argparse.Namespace) -> int:
    """Print one line: the reason to drain the node, or why there is none."""
    try:
        found = find_handover(make_client(args, TIMEOUT_S), args)
    except (ClientError, TokenError, TlsError, OSError) as error:
        print(f"unknown: {clean(str(error))}")
        return UNKNOWN
    if found.acts:
        print(clean(found.reason))
        return BAD
    held = f"; held: {clean(found.reason)}: {'; '.join(found.held)}" if found.reason else ""
    print(f"no incident asks for this node to be drained{held}")
    sys.stdout.flush()
    return GOOD


def find_handover(client: TowerClient, args: argparse.Namespace) -> Handover:
    """Ask the tower. Raises ClientError.

    Nearly every time, one request for each domain shows that no incident blames the node.
    """
    guards = replace(
        read_guards(args, Guards().domains),
        max_nodes_percent=args.max_nodes,
        observes=args.observe,
    )
    now = time.time()
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(0.0, now - guards.max_age_s)))
    domains = [each.value for each in sorted(guards.domains, key=lambda each: each.value)]
    blames = [
        domain
        for domain in domains
        if client.list_incidents(1, node=args.node, domain=domain, since=since)["items"]
    ]
    if not blames:
        return Handover(acts=False, reason="")
    listed = [
        item["id"]
        for domain in domains
        for item in client.list_incidents(MAX_INCIDENTS, domain=domain, since=since)["items"]
    ]
    return decide(
        args.node,
        [read_blamed(client.incident(each), now) for each in listed],
        node_count=int(client.nodes()["connected"]),
        is_silenced=any(each.get("node") == args.node for each in client.silences()),
        guards=guards,
    )


def read_blamed(detail: dict[str, Any], now: float) -> Blamed:
    """Return what matters of an answer about an incident. Raises ClientError."""
    try:
        verdict, feedback = detail["verdict"], detail.get("feedback")
        nodes = dict.fromkeys(str(each["node"]) for each in verdict["suspects"])
        return Blamed(
            incident=str(detail["id"]),
            cause=str(verdict["cause"]),
            domain=Domain(verdict["domain"]),
            confidence=float(verdict["confidence"] or 0.0),
            nodes=tuple(nodes),
            age_s=now - read_time(detail["opened_at"]).timestamp(),
            is_shadow=bool(detail["shadow"]),
            was_right=feedback["right"] if feedback else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ClientError(f"an answer of the tower lacks {error}") from None


def _share(text: str) -> float:
    return _number(text, 1.0)


def _percent(text: str) -> float:
    return _number(text, 100.0)


def _number(text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= most:
        raise argparse.ArgumentTypeError(f"invalid number {text!r}: must be 0 to {most:g}")
    return value
