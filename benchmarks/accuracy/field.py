"""Scores `watchtower diagnose` on the cases of tests/field: files as people have them.

Beside it, torch's own analyzer reads the same flight recorder dumps. The results file is written
anew each time: a run takes a minute.

    python -m benchmarks.accuracy.field
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.accuracy.circumstances import read_commit
from benchmarks.accuracy.peers.frtrace import AS_SHIPPED, analyze
from tests.field.field_case import FieldCase, diagnose_folder, write
from tests.field.test_field import FORMS
from watchtower.readers.plain_pickle import RefusedPickle, load_plain
from watchtower.readers.text_lines import owner_in_name

FIELD = Path("benchmarks/results/field.jsonl")

Row = dict[str, Any]

MISSING_DUMPS = "Missing dump files"
"""torch's analyzer refuses a folder without the dump of a rank, and has an option for it."""

RIGHT, SAID_SO, MISSED, WRONG = "right", "cannot be decided", "not named", "wrong"


def main() -> None:
    """Judge every case, and write the results file."""
    date, commit = datetime.now(timezone.utc).isoformat(timespec="seconds"), read_commit()
    rows = [
        {"commit": commit, "date": date, "form": form, **_judge(case)}
        for form, cases in FORMS.items()
        for case in cases
    ]
    FIELD.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    print(Counter(row["outcome"] for row in rows))


def _judge(case: FieldCase) -> Row:
    with tempfile.TemporaryDirectory(prefix="watchtower-field-") as folder:
        verdict = diagnose_folder(write(case, Path(folder)))
    named = sorted(suspect.rank for suspect in verdict.suspects)
    truth = sorted(case.suspects)
    row = {"case": case.name, "truth": truth, "named": named, "outcome": _score(truth, named)}
    return row | _ask_torch(case, truth)


def _score(truth: list[int], named: list[int]) -> str:
    """Return how an answer compares. A case without a truth has files that cannot show it."""
    if named == truth:
        return RIGHT if truth else SAID_SO
    return WRONG if named else MISSED


def _ask_torch(case: FieldCase, truth: list[int]) -> Row:
    """Return the answer of torch's analyzer, if the case has dumps of the flight recorder."""
    dumps = {}
    for name, raw in case.files.items():
        if isinstance(raw, bytes):
            try:
                dumps[owner_in_name(name).rank] = (
                    json.loads(raw) if raw[:1] == b"{" else load_plain(raw)
                )
            except (RefusedPickle, ValueError):
                continue
    if not dumps:
        return {}
    opinion = analyze(dumps, ())
    if MISSING_DUMPS in opinion.said:
        opinion = analyze(dumps, ("--allow-incomplete-ranks",))
    outcome = "failed" if opinion.failed else _score(truth, list(opinion.accused))
    return {"torch": {"accused": opinion.accused, "said": opinion.said, "outcome": outcome}}


def render_field(rows: list[Row]) -> str:
    """Render the results, by form, and torch's analyzer beside."""
    if not rows:
        return "## Files of people\n\nNone were judged: `python -m benchmarks.accuracy.field` does."
    outcomes = (RIGHT, SAID_SO, MISSED, WRONG)
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        for form in (row["form"], "**all**"):
            counts.setdefault(form, Counter())[row["outcome"]] += 1
    table = [
        f"| {form} | {' | '.join(str(got[outcome]) for outcome in outcomes)} |"
        for form, got in [
            *((form, got) for form, got in counts.items() if form != "**all**"),
            ("**all**", counts["**all**"]),
        ]
    ]
    wrong = [f"- {r['case']}: {r['truth']}, named {r['named']}" for r in rows if _is_bad(r)]
    asked = [row for row in rows if "torch" in row]
    beside = [
        f"| {r['case']} | {_ranks(r['truth'])} | {r['outcome']} | {r['torch']['outcome']} |"
        for r in asked
    ]
    return "\n".join(
        [
            "## Files of people",
            "",
            f"`watchtower diagnose` on the {len(rows)} cases of `tests/field`, at commit "
            f"`{rows[-1]['commit']}`. The texts are written",
            "from the facts of public reports. Cannot be decided: the files cannot show the rank, "
            "and no rank is named.",
            "These cases are also tests, so they show what is covered, and not how often an unseen "
            "report is right.",
            "",
            f"| form | {' | '.join(outcomes)} |",
            "|---" * (len(outcomes) + 1) + "|",
            *table,
            "",
            *wrong,
            *([""] if wrong else []),
            f"{AS_SHIPPED.name} on the same flight recorder dumps, named as it wants them, with",
            "`--allow-incomplete-ranks` where a rank has none:",
            "",
            "| case | rank | watchtower | torchfrtrace |",
            "|---|---|---|---|",
            *beside,
        ]
    )


def _is_bad(row: Row) -> bool:
    return row["outcome"] in (MISSED, WRONG)


def _ranks(truth: list[int]) -> str:
    return ", ".join(map(str, truth)) or "-"


if __name__ == "__main__":
    main()
