"""`watchtower replay`: decides again, with the rules of this release.

From an exported incident it makes the verdict again; from a recording all that the tower did.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from watchtower import __version__
from watchtower.commands.client import DONE, TROUBLE, ClientError
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import CASE_SCHEMA
from watchtower.jobs.verdicts import diagnosed_verdict
from watchtower.tower.export import BUNDLE_FORMAT, Bundle
from watchtower.tower.recording import RecordingError, is_recording
from watchtower.wire.verdict import Verdict
from watchtower.writing.verdict_text import render_text

MAX_BYTES = 256 * 1024 * 1024
"""Larger than the export of the largest job."""

_BUNDLES = msgspec.json.Decoder(Bundle)


def replay(args: argparse.Namespace) -> int:
    """Print both verdicts of an export; return 1 if they name other ranks or causes.

    Of a recording, print what the tower logs, and the verdict of each incident at the end.
    """
    if is_recording(args.file):
        return _replay_recording(args)
    bundle = read_bundle(args.file)
    now = diagnose_again(bundle)
    if args.json:
        print(msgspec.json.encode({"then": bundle.verdict, "now": now}).decode())
    else:
        then, again = (render_text(verdict, time.time()) for verdict in (bundle.verdict, now))
        print(f"then, by watchtower {bundle.watchtower}:\n\n{then}")
        print(f"now, by watchtower {__version__}:\n\n{again}", end="")
    return DONE if _names(bundle.verdict) == _names(now) else TROUBLE


def _replay_recording(args: argparse.Namespace) -> int:
    # A whole tower is not imported for an export.
    from watchtower.store.sqlite import SqliteStore  # noqa: PLC0415
    from watchtower.tower.replay import replay as replay_recording  # noqa: PLC0415

    verdicts: dict[str, Verdict] = {}

    def show(effect: Mapping[str, Any]) -> None:
        if args.json:
            print(msgspec.json.encode(effect).decode())
        elif "incident" in effect:
            state = effect["state"]
            verdicts[state["id"]] = msgspec.convert(state["verdict"], Verdict)
        elif text := effect.get("log") or effect.get("refused") or effect.get("failed"):
            print(f"{effect['at']:8.1f} s  {text}")

    try:
        with (
            TemporaryDirectory() as folder,
            closing(SqliteStore(Path(folder) / "watchtower.db", inline=True)) as store,
        ):
            replay_recording(args.file, store, show)
    except RecordingError as error:
        raise ClientError(str(error)) from None
    for verdict in verdicts.values():
        print(f"\n{render_text(verdict)}", end="")
    return DONE


def read_bundle(path: Path) -> Bundle:
    """Read an export. Raises ClientError, OSError."""
    if path.stat().st_size > MAX_BYTES:
        raise ClientError(
            f"{path} has more than {MAX_BYTES} bytes: it is not an export of watchtower"
        )
    try:
        bundle = _BUNDLES.decode(_read(path))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ClientError(f"{path} is not an export of watchtower: {error}") from None
    schema = bundle.case.schema if bundle.case else 0
    if bundle.format != BUNDLE_FORMAT or schema > CASE_SCHEMA:
        raise ClientError(f"{path} was written by a newer watchtower: replay it with that release")
    return bundle


def _read(path: Path) -> bytes:
    """Return the bytes of a file. Raises OSError with its name: `open` names the file, `read` does
    not, and an error without a name is one of the output (`exit_codes`).
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def diagnose_again(bundle: Bundle) -> Verdict:
    """Diagnose the case of an export. Raises ClientError when it has none."""
    if bundle.case is None:
        raise ClientError(f"incident {bundle.id} has no evidence: it was deleted before the export")
    then = bundle.verdict
    now = diagnosed_verdict(bundle.job, bundle.generation, then.status, diagnose(bundle.case), 0)
    return replace(
        now, incident=then.incident, opened_at=then.opened_at, diagnosed_at=then.diagnosed_at
    )


def _names(verdict: Verdict) -> tuple[object, list[int]]:
    return verdict.cause, [suspect.rank for suspect in verdict.suspects]
