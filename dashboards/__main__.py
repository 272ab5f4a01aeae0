"""Writes the JSON files of all dashboards: `make dashboards`."""

from __future__ import annotations

import json
from pathlib import Path

from dashboards import fleet, incident, job, node, own_health
from dashboards.board import Board

BOARDS = (fleet.BOARD, job.BOARD, incident.BOARD, node.BOARD, own_health.BOARD)

FOLDER = Path(__file__).parent / "provisioning/dashboards/watchtower"


def render(board: Board) -> str:
    """Return the text of the JSON file of a dashboard."""
    return json.dumps(board.to_json(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all files."""
    for board in BOARDS:
        (FOLDER / f"{board.name}.json").write_text(render(board), "utf-8")


if __name__ == "__main__":
    main()
