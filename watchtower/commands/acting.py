"""The commands by which people act: acknowledge, answer "was this right?", silence."""

from __future__ import annotations

import argparse
import getpass
import time
from typing import Any

from watchtower.commands.client import DONE, ClientError, NotFoundError, TowerClient
from watchtower.commands.contexts import add_tower, make_client
from watchtower.commands.options import INCIDENT_HELP, duration
from watchtower.commands.printing import as_json, clean
from watchtower.commands.texts import (
    KINDS,
    MAX_NAMED,
    kind_of,
    list_connected,
    write_ack,
    write_feedback,
    write_silence,
)
from watchtower.service.command_line import Parser, name_or_id, person, suggest
from watchtower.wire.verdict import Cause
from watchtower.writing.text import name_some


def ack(client: TowerClient, args: argparse.Namespace) -> int:
    """Acknowledge an incident. Prints the acknowledgement that this one replaces."""
    incident = client.incident(args.incident)
    answer = client.ack(incident["id"], args.by, args.note)
    by, before = f" by {answer['by']}" if answer["by"] else "", incident.get("ack")
    earlier = f"; before: {write_ack(before, time.time())}" if before else ""
    text = f"{incident['id']} is acknowledged{by}{earlier}"
    print(as_json(answer) if args.json else clean(text))
    return DONE


def ack_outage(client: TowerClient, args: argparse.Namespace) -> int:
    """Acknowledge the open incidents of an outage that no person has acknowledged.

    An incident that joins the outage later is not acknowledged.
    """
    outage = _find_outage(client, args.outage)
    waiting = [
        one
        for one in outage["incidents"]
        if one["closed_at"] is None and not one.get("acknowledged")
    ]
    answers = [client.ack(one["id"], args.by, args.note) for one in waiting]
    if args.json:
        print(as_json({"items": answers}))
        return DONE
    jobs = name_some([str(one["job"]) for one in waiting[:MAX_NAMED]], len(waiting))
    text = f"{len(waiting)} of {len(outage['incidents'])} incidents of outage {outage['id']}"
    print(clean(f"{text} are now acknowledged{f': {jobs}' if jobs else ''}"))
    return DONE


def _find_outage(client: TowerClient, text: str) -> dict[str, Any]:
    """Return the outage whose id begins with `text`. Raises NotFoundError, ClientError."""
    outages: list[dict[str, Any]] = client.list_outages()["items"]
    found = [one for one in outages if str(one["id"]).startswith(text.upper())]
    if len(found) > 1:
        names = ", ".join(str(one["id"]) for one in found[:MAX_NAMED])
        raise ClientError(f"several outages begin with {text!r}: {names}")
    if not found:
        raise NotFoundError(f"there is no outage {text!r}: `watchtower outages` lists them")
    return found[0]


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


def add_names(parser: Parser) -> None:
    """Add the options that name what is silenced."""
    named = parser.add_mutually_exclusive_group(required=True)
    named.add_argument("--job", type=name_or_id, help="name of a job; it need not run yet")
    named.add_argument(
        "--node",
        type=name_or_id,
        help="name of a node: only incidents whose suspects are all on it",
    )
    named.add_argument("--user", type=name_or_id, help="user of jobs, by their labels")
    named.add_argument(
        "--remove", type=name_or_id, metavar="ID", help="end the silence with this id"
    )


def add_length(parser: Parser) -> None:
    """Add the options that say how long, why, and who asks for it."""
    parser.add_argument(
        "--for",
        dest="for_s",
        type=duration,
        metavar="DURATION",
        help="how long, such as 30m, 2h or 1d",
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="shown with the silence")
    parser.add_argument(
        "--by", type=person, metavar="NAME", help="who asks for it (default: your user name)"
    )


def check_arguments(parser: Parser, args: argparse.Namespace) -> None:
    """Exit with status 2 if the length is missing, or given for the end of a silence."""
    if (args.remove is None) == (args.for_s is None):
        parser.error("--for DURATION is needed to silence, and not allowed with --remove")


def user_name() -> str:
    """Return the name of the user who runs this; empty if the system does not know it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, in a container
        return ""


def silence(client: TowerClient, args: argparse.Namespace) -> int:
    """Silence the alerts of a job, node or user for a while, or end a silence."""
    if args.remove is not None:
        return _remove(client, args, _find_id(client, args.remove))
    kind = next(kind for kind in KINDS if getattr(args, kind) is not None)
    name, by = getattr(args, kind), user_name() if args.by is None else args.by
    answer = client.silence(kind, name, args.for_s, args.reason, by)
    text = write_silence({**answer, "reason": ""}, time.time())
    return _print(args, answer, f"{text}{_describe_unknown(client, kind, name)}")


def _remove(client: TowerClient, args: argparse.Namespace, ident: str) -> int:
    answer = client.remove_silence(ident)
    kind = kind_of(answer)
    return _print(args, answer, f"alerts of {kind} {answer[kind]} are not silenced any more")


def _find_id(client: TowerClient, text: str) -> str:
    """Return the id that begins with `text`; `text` itself if there is none. Raises ClientError."""
    ids = [str(one["id"]) for one in client.silences()]
    found = [ident for ident in ids if ident.startswith(text.upper())]
    if len(found) > 1:
        raise ClientError(f"several silences begin with {text!r}: {', '.join(found[:MAX_NAMED])}")
    return found[0] if found else text


def _describe_unknown(client: TowerClient, kind: str, name: str) -> str:
    """Return a hint if no agent reports the name; empty if one does."""
    if kind == "node":
        nodes = client.nodes()
        names = list_connected(nodes)
        if len(names) < int(nodes["connected"]):
            return ""  # the tower lists only some of them
        known = "connected agents are on"
    else:
        jobs = client.jobs()
        users = {str((job.get("labels") or {}).get("user") or "") for job in jobs} - {""}
        names = sorted(users) if kind == "user" else [str(job["job"]) for job in jobs]
        known = "agents report jobs of" if kind == "user" else "agents report"
    if name in names:
        return ""
    shown = ", ".join(names[:MAX_NAMED])
    hint = suggest(name, names)
    return (
        f". No agent reports this {kind} now{shown and f'; {known} {shown}'}{hint and f'.{hint}'}"
    )


def _print(args: argparse.Namespace, answer: dict[str, Any], text: str) -> int:
    print(as_json(answer) if args.json else clean(text))
    return DONE
