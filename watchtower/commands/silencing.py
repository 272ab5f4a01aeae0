"""The commands about silences: silence, silences, and the old mute, unmute."""

from __future__ import annotations

import argparse
import getpass
import sys
import time
from typing import Any

from watchtower.commands.asking import KINDS, MAX_NAMED, kind_of, write_silence
from watchtower.commands.client import ClientError, NotFoundError, TowerClient
from watchtower.commands.empty import list_connected
from watchtower.commands.exit_codes import DONE
from watchtower.commands.listing import MAX_DURATION, read_duration
from watchtower.commands.printing import as_json, clean, table
from watchtower.service.command_line import Parser, name_or_id, person, suggest
from watchtower.wire.bounds import MAX_SILENCE_S
from watchtower.writing.times import DAY, format_time


def duration(text: str) -> float:
    """Read "90s", "30m", "2h", "1h30m" or "1d" as seconds; for argparse."""
    seconds = read_duration(text)
    if seconds is None:
        shown = text[:MAX_DURATION]
        raise argparse.ArgumentTypeError(f"invalid duration {shown!r}: use 30m, 2h, 1h30m or 1d")
    if not 1 <= seconds <= MAX_SILENCE_S:
        most = f"{MAX_SILENCE_S / DAY:g}d"
        raise argparse.ArgumentTypeError(f"invalid duration {text!r}: must be 1s to {most}")
    return seconds


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


def add_length(parser: Parser, *, is_required: bool = False) -> None:
    """Add the options that say how long, why, and who asks for it."""
    parser.add_argument(
        "--for",
        dest="for_s",
        type=duration,
        required=is_required,
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
    return _add(client, args, kind, getattr(args, kind))


def mute(client: TowerClient, args: argparse.Namespace) -> int:
    """Silence a job, by the old name of the command."""
    _warn("mute JOB", "silence --job JOB")
    return _add(client, args, "job", args.job)


def unmute(client: TowerClient, args: argparse.Namespace) -> int:
    """End the silence of a job, by the old name of the command."""
    _warn("unmute JOB", "silence --remove ID")
    found = [one for one in client.silences() if one["job"] == args.job]
    if not found:
        raise NotFoundError(f"the alerts of job {args.job!r} are not silenced")
    return _remove(client, args, str(found[0]["id"]))


def show_silences(client: TowerClient, args: argparse.Namespace) -> int:
    """List the silences in force."""
    answer = client.list_silences()
    if args.json:
        print(as_json(answer))
        return DONE
    rows = [("ID", "SILENCED", "NAME", "UNTIL", "BY", "REASON")]
    for one in answer["items"]:
        kind = kind_of(one)
        until = format_time(str(one["until"]), time.time())
        rows.append((one["id"], kind, one[kind], until, one.get("by") or "-", one["reason"] or "-"))
    print(table(rows) if len(rows) > 1 else "No job, node or user is silenced.")
    return DONE


def _add(client: TowerClient, args: argparse.Namespace, kind: str, name: str) -> int:
    by = user_name() if args.by is None else args.by
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


def _warn(old: str, new: str) -> None:
    text = f"`watchtower {old}` is now `watchtower {new}`: the next release refuses the old name"
    print(f"watchtower: {text}", file=sys.stderr)


def _print(args: argparse.Namespace, answer: dict[str, Any], text: str) -> int:
    print(as_json(answer) if args.json else clean(text))
    return DONE
