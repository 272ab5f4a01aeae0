"""The command `ack`: acknowledges one incident, or all open incidents of an outage."""

from __future__ import annotations

import argparse
import time
from typing import Any

from watchtower.commands.asking import MAX_NAMED, write_ack
from watchtower.commands.client import ClientError, NotFoundError, TowerClient
from watchtower.commands.exit_codes import DONE
from watchtower.commands.printing import as_json, clean


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
    jobs = ", ".join(str(one["job"]) for one in waiting[:MAX_NAMED])
    more = f" and {len(waiting) - MAX_NAMED} more" if len(waiting) > MAX_NAMED else ""
    text = f"{len(waiting)} of {len(outage['incidents'])} incidents of outage {outage['id']}"
    print(clean(f"{text} are now acknowledged{f': {jobs}{more}' if jobs else ''}"))
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
