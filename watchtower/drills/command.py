"""`watchtower drill`: its arguments and its output."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from watchtower.alerts.settings import NAMES
from watchtower.drills.catalogue import DRILLS, find_drill
from watchtower.drills.display import Display
from watchtower.drills.drill_run import Drill
from watchtower.drills.errors import DrillError
from watchtower.drills.moments import MOMENTS, find_moment
from watchtower.drills.notifying import make_notify
from watchtower.drills.plain import PlainDisplay
from watchtower.drills.result import Result
from watchtower.drills.runner import Request, run_drill
from watchtower.drills.settings import read_config
from watchtower.drills.setup import BACKENDS

RIGHT, WRONG, NOT_RUN = 0, 1, 2
INTERRUPTED = 130

LIST_WIDTH = 100
INDENT = " " * 6
LIST_HEAD = (
    "Each drill hangs a small job, or lets a healthy one run: NAME -> the right answer.",
    "Backends: stdlib needs no torch. torch needs torch. queued imitates GPUs: it needs torch and",
    "a C compiler. A drill runs on all three, or only on those in brackets. --backend selects one.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `watchtower drill`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the drill to run")
    parser.add_argument(
        "--list", action="store_true", help="list every drill with the right answer"
    )
    parser.add_argument("--ranks", type=int, default=8, help="ranks of the job (8)")
    parser.add_argument("--nodes", type=int, default=2, help="nodes, each with an agent (2)")
    parser.add_argument("--rank", type=int, help="the rank with the fault (random)")
    parser.add_argument(
        "--step", type=int, help="the step before which the fault comes (one after a warm-up)"
    )
    parser.add_argument(
        "--moment",
        choices=[moment.name for moment in MOMENTS],
        help="the moment at which the fault comes",
    )
    parser.add_argument(
        "--backend",
        choices=("auto", *BACKENDS),
        default="auto",
        help="library of the training job (auto)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with the sections [drill], [detection] and, for --notify, [alerts]",
    )
    parser.add_argument(
        "--notify",
        choices=NAMES,
        metavar="DEST",
        help="send the alert, marked as a drill, to a destination of [alerts] in --config or in "
        "the environment",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FOLDER",
        help="record the inputs of the drill's tower to FOLDER/tower-1.gz, for `watchtower "
        "replay`; a restarted tower records to tower-2.gz",
    )
    parser.add_argument(
        "--stay",
        action="store_true",
        help="on a terminal: keep the hung job and the tower, print the address of its page, and "
        "end on Ctrl-C",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON in the last line of stdout"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code: 0 right, 1 wrong, 2 the drill could not run."""
    if args.list:
        print(list_drills())
        return RIGHT
    try:
        result = _run(args)
    except DrillError as error:
        _explain(error, args)
        return NOT_RUN
    except KeyboardInterrupt:
        print("interrupted; all started processes have been ended", file=sys.stderr)
        return INTERRUPTED
    if args.json:
        print(json.dumps(result.to_json()), flush=True)
    return RIGHT if result.judgement.is_right else WRONG


def list_drills() -> str:
    """Return the list of drills: the right answer, the backends if not all, and what each shows."""
    lines = [*LIST_HEAD, "", "Faults: the tower must name the rank and the cause."]
    lines += [line for drill in DRILLS if drill.is_fault for line in _listed(drill)]
    lines += ["", "Healthy jobs: the tower must not open an incident."]
    lines += [line for drill in DRILLS if not drill.is_fault for line in _listed(drill)]
    return "\n".join(lines)


def _run(args: argparse.Namespace) -> Result:
    if args.name is None:
        raise DrillError("missing NAME of a drill", "list all drills with: watchtower drill --list")
    config = read_config(args.config)
    notify = make_notify(args.notify, config.alerts) if args.notify else None
    request = Request(
        drill=find_drill(args.name),
        ranks=args.ranks,
        nodes=args.nodes,
        rank=args.rank,
        step=args.step,
        moment=find_moment(args.moment) if args.moment else None,
        backend=args.backend,
        notify=notify,
        record=args.record,
        stay=args.stay and not args.json and is_attended(sys.stdout, os.environ),
        config=config,
    )
    stream = sys.stderr if args.json else sys.stdout
    return run_drill(request, choose_display(stream, plain=args.json))


def _listed(drill: Drill) -> list[str]:
    answer = drill.expected.cause or drill.expected.passes or drill.expected.statuses[0]
    only = "" if set(drill.backends) == set(BACKENDS) else f"  [{', '.join(drill.backends)}]"
    shows = textwrap.wrap(drill.shows, LIST_WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    return [f"  {drill.name} -> {answer}{only}", *shows]


def _explain(error: DrillError, args: argparse.Namespace) -> None:
    print(f"the drill could not run: {error}", file=sys.stderr)
    if error.help_text:
        print(error.help_text, file=sys.stderr)
    if args.json:
        print(json.dumps({"drill": args.name, "reason": str(error)}), flush=True)


def is_attended(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether a person sees the output: on a terminal, unless a CI system made it.

    CI systems set `CI`, and some of them run commands on a terminal.
    """
    return stream.isatty() and environment.get("CI", "").lower() in ("", "0", "false")


def choose_display(stream: TextIO, *, plain: bool) -> Display:
    """Return a live display if the stream is a terminal and rich is installed, else plain lines.

    `plain` requests plain lines.
    """
    if plain or not stream.isatty() or find_spec("rich") is None:
        return PlainDisplay(stream)
    from watchtower.drills.live import LiveDisplay  # noqa: PLC0415 -- rich is heavy

    return LiveDisplay(stream)
