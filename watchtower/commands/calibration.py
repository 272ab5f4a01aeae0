"""The command `calibration`: how often verdicts were right, by their confidence."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from watchtower.commands.client import TowerClient
from watchtower.commands.exit_codes import DONE
from watchtower.commands.printing import as_json, table

NONE_YET = (
    'No answers yet. Answer "Was this right?" on the page of an incident, or with '
    "`watchtower feedback ID right`."
)


def show_calibration(client: TowerClient, args: argparse.Namespace) -> int:
    """Print how often verdicts were right, as people answered."""
    answer = client.calibration()
    print(as_json(answer) if args.json else write_calibration(answer))
    return DONE


def write_calibration(answer: dict[str, Any]) -> str:
    """Return the table of confidence, and the table of causes."""
    right, wrong = int(answer["right_count"]), int(answer["wrong_count"])
    if not right + wrong:
        return NONE_YET
    bands: list[tuple[str, ...]] = [("CONFIDENCE", "RIGHT", "WRONG", "MEAN", "WERE RIGHT")]
    for one in answer["items"]:
        limits = f"{one['confidence_from']:.0%}-{one['confidence_to']:.0%}"
        bands.append((limits, *_counts(one), _share(one["mean_confidence"]), _right(one)))
    causes: list[tuple[str, ...]] = [("CAUSE", "RIGHT", "WRONG")]
    causes += [(str(one["cause"]), *_counts(one)) for one in answer["causes"]]
    total = f"{right} of {right + wrong} verdicts were right, as people answered."
    return "\n\n".join((total, table(bands), table(causes)))


def _counts(one: dict[str, Any]) -> Sequence[str]:
    return str(one["right_count"]), str(one["wrong_count"])


def _right(band: dict[str, Any]) -> str:
    return _share(band["right_share"])


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
