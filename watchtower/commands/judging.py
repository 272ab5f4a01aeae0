"""The command `feedback`: answers "was this right?" about the verdict of an incident."""

from __future__ import annotations

import argparse
import time

from watchtower.commands.client import TowerClient
from watchtower.commands.earlier import write_feedback
from watchtower.commands.exit_codes import DONE
from watchtower.commands.printing import as_json, clean
from watchtower.commands.silencing import user_name
from watchtower.commands.tower_options import INCIDENT_HELP, add_tower, make_client
from watchtower.service.command_line import Parser, name_or_id, person
from watchtower.wire.verdict import Cause

RIGHT, WRONG = "right", "wrong"

CAUSES = tuple(cause.value for cause in Cause if cause is not Cause.UNKNOWN)


def add_feedback(parser: Parser) -> None:
    """Add the options of `feedback`."""
    parser.add_argument("incident", type=name_or_id, help=INCIDENT_HELP)
    parser.add_argument("answer", choices=(RIGHT, WRONG), help="whether the verdict was right")
    parser.add_argument(
        "--rank", type=int, metavar="N", help="the rank that really held up the job, if wrong"
    )
    parser.add_argument(
        "--cause",
        choices=CAUSES,
        metavar="CAUSE",
        help="the real cause, if wrong: `gpu_fault`, ...",
    )
    parser.add_argument(
        "--by", type=person, metavar="NAME", help="who answers (default: your user name)"
    )
    parser.add_argument("--note", default="", metavar="TEXT", help="shown with the incident")
    add_tower(parser)
    parser.add_argument("--json", action="store_true", help="print the answer of the API, as JSON")
    parser.set_defaults(run=lambda args: judge(make_client(args), args))


def judge(client: TowerClient, args: argparse.Namespace) -> int:
    """Send the answer. Prints the one that it replaces."""
    incident = client.incident(args.incident)
    given = client.judge(
        incident["id"],
        right=args.answer == RIGHT,
        rank=args.rank,
        cause=args.cause,
        by=user_name() if args.by is None else args.by,
        note=args.note,
    )
    now, before = time.time(), incident.get("feedback")
    earlier = f"; before: {write_feedback(before, now)}" if before else ""
    text = f"the verdict on {incident['id']} is {write_feedback(given, now)}{earlier}"
    print(as_json(given) if args.json else clean(text))
    return DONE
