"""The commands that write a document about an incident: `export` and `postmortem`."""

from __future__ import annotations

import argparse
from pathlib import Path

from watchtower.commands.client import TowerClient
from watchtower.commands.exit_codes import DONE
from watchtower.commands.printing import clean_lines


def export(client: TowerClient, args: argparse.Namespace) -> int:
    """Write an incident with everything that its verdict was made from."""
    bundle = client.export(args.incident)
    _write(
        bundle, args.output, f"{len(bundle) / 1000:.0f} KB. Diagnose it again: watchtower replay"
    )
    return DONE


def postmortem(client: TowerClient, args: argparse.Namespace) -> int:
    """Write the post-mortem of an incident."""
    document = clean_lines(client.postmortem(args.incident, args.format))
    _write(document, args.output, f"{len(document.splitlines())} lines")
    return DONE


def _write(document: str, path: Path | None, what: str) -> None:
    if path is None:
        print(document)
    else:
        path.write_text(document, "utf-8")
        print(f"{path}: {what}")
