"""Options of the commands that diagnose a job now, without an incident."""

from __future__ import annotations

import argparse
from pathlib import Path

from watchtower.arguments import Parser, name_or_id
from watchtower.commands.silencing import duration


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


def _diagnose(args: argparse.Namespace) -> int:
    from watchtower.commands.diagnosing import show_diagnosis  # noqa: PLC0415 - only if needed

    return show_diagnosis(args)
