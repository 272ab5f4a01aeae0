"""Options of the commands that diagnose a job now, without an incident."""

from __future__ import annotations

import argparse
from pathlib import Path

from watchtower.commands.silencing import duration
from watchtower.service.command_line import Parser, name_or_id


def add_diagnose(parser: Parser) -> None:
    """Add the options of `watchtower diagnose`."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="file that `watchtower-agent snapshot` wrote, - for standard input",
    )
    parser.add_argument("--job", type=name_or_id, help="only this job")
    parser.add_argument(
        "--within",
        type=duration,
        default="15m",
        metavar="DURATION",
        help="longest time between the snapshots of one job (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("--exit-code", action="store_true", help="exit with 1 if a job is suspect")
    parser.set_defaults(run=_diagnose)


def add_now(once: argparse._ActionsContainer) -> None:
    """Add the option of `watchtower why` that dumps the job first."""
    once.add_argument(
        "--now",
        action="store_true",
        help="dump the job now and diagnose it, also if no rank is suspect; needs JOB",
    )


def add_stacks(parser: Parser) -> None:
    """Add the options of `watchtower stacks`, except those about the tower."""
    parser.add_argument(
        "job", type=name_or_id, help="name of the job, or its name or id in the scheduler"
    )
    parser.add_argument("--rank", type=int, help="only the stacks of this rank")
    parser.add_argument("--all-threads", action="store_true", help="not only the main threads")
    parser.add_argument(
        "--native",
        action="store_true",
        help="with native functions; needs --rank. The agent stops the rank for some tenths of a "
        "second",
    )
    order = parser.add_mutually_exclusive_group()
    order.add_argument(
        "--innermost",
        dest="outermost",
        action="store_false",
        help="one list of frames for each stack, innermost first (default)",
    )
    order.add_argument(
        "--outermost",
        action="store_true",
        help="one tree for all ranks, outermost frame first",
    )
    parser.set_defaults(outermost=False)


EXAMINE_TIMEOUT_S = 60.0
"""The tower waits up to 15 s for dumps, and other examinations may be first."""


def _diagnose(args: argparse.Namespace) -> int:
    from watchtower.commands.diagnosing import show_diagnosis  # noqa: PLC0415 - only if needed

    return show_diagnosis(args)
