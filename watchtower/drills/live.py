"""A live display on a terminal: the ranks with their steps, the history, and the verdict.

Everything is drawn as `Text`, never as markup, because text of a job is not trusted.
"""

from __future__ import annotations

from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from watchtower.drills.client import Json, json_list
from watchtower.drills.display import clock_text
from watchtower.drills.judging import suspect_ranks
from watchtower.drills.plain import changes
from watchtower.drills.result import Result
from watchtower.drills.text import (
    clean,
    number,
    outcome_lines,
    rank_words,
    state_of,
    verdict_lines,
)
from watchtower.drills.watch import Observed

RANKS_SHOWN = 16
"""Ranks drawn one by one. For larger jobs: the suspects and the first ranks."""
HISTORY_SHOWN = 8
BAR_CELLS = 20
BAR_S = 10.0
"""Seconds without a step that fill the bar of a rank."""
WORRYING_S = 3.0

STATUS_STYLE = {
    "healthy": "green",
    "recovered": "green",
    "suspect": "yellow",
    "slow": "yellow",
    "suspended": "yellow",
    "monitoring_lost": "magenta",
    "hung": "bold red",
    "ended": "bold",
}


class LiveDisplay:
    """Draws on a terminal with rich."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console, auto_refresh=False, vertical_overflow="crop", transient=False
        )
        self._history: list[tuple[str, str]] = []
        self._shown: dict[str, str] = {}

    def open(self, lines: list[str]) -> None:
        """Show what the drill will do, then start drawing below."""
        for line in lines:
            self._console.print(Text(line))
        self._console.print()
        self._live.start()

    def note(self, text: str, observed: Observed) -> None:
        """Add a line to the history."""
        self._history.append((clock_text(observed), clean(text)))
        self._draw(observed)

    def show(self, observed: Observed) -> None:
        """Draw the current state, and add changes to the history."""
        for topic, line in changes(observed):
            if self._shown.get(topic) != line:
                self._shown[topic] = line
                self._add_line(topic, line, observed)
        self._draw(observed)

    def finish(self, result: Result, closing: list[str], staying: list[str]) -> None:
        """Keep the last picture, and print verdict and outcome below it."""
        self._draw(result.observed)
        self._live.stop()
        if result.drill.is_fault and result.observed.verdict:
            self._console.print(draw_verdict(result.observed.verdict))
        style = "bold green" if result.judgement.is_right else "bold red"
        for line in outcome_lines(result):
            self._console.print(Text(line, style=style))
        self._console.print()
        for line in closing:
            self._console.print(Text(line, style="dim"))
        for line in ["", *staying] if staying else []:
            self._console.print(Text(line, style="bold"))

    def close(self) -> None:
        """Restore the cursor of the terminal."""
        self._live.stop()

    def _add_line(self, topic: str, line: str, observed: Observed) -> None:
        """Add a line, or replace the last one if only its count has changed."""
        if topic == "dumps" and self._history and self._history[-1][1].startswith("dumps "):
            self._history.pop()
        self._history.append((clock_text(observed), line))

    def _draw(self, observed: Observed) -> None:
        self._live.update(draw_observed(observed, self._history[-HISTORY_SHOWN:]), refresh=True)


def draw_observed(observed: Observed, history: list[tuple[str, str]]) -> RenderableType:
    """Return the whole display."""
    return Group(_draw_status(observed), _draw_ranks(observed), Text(), _draw_history(history))


def draw_verdict(verdict: Json) -> RenderableType:
    """Return the verdict in a frame."""
    first, *rest = verdict_lines(verdict)
    text = Text(first + "\n", style="bold")
    text.append("\n".join(rest), style="not bold")
    return Panel(text, title=Text("verdict"), border_style="red", padding=(1, 2))


def _draw_status(observed: Observed) -> Text:
    status = state_of(observed.statuses[-1], observed.verdict) if observed.statuses else "starting"
    text = Text("job ").append(observed.job, style="bold").append("  ")
    text.append(status, style=STATUS_STYLE.get(status, ""))
    text.append(f"  {clock_text(observed)}", style="dim")
    return text


def _draw_ranks(observed: Observed) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title, side in (("rank", "right"), ("node", "left"), ("pid", "right"), ("step", "right")):
        table.add_column(title, justify="right" if side == "right" else "left")
    table.add_column("last step", min_width=BAR_CELLS + 8)
    table.add_column("")
    accused = suspect_ranks(observed.verdict)
    ranks = json_list((observed.view or {}).get("rank_states"))
    for rank in _chosen(ranks, accused):
        style = "bold red" if rank.get("rank") in accused else ""
        cells = [clean(rank.get(name, "")) for name in ("rank", "node", "pid", "step")]
        state = Text(_state(rank, accused), style=style)
        table.add_row(*(Text(cell, style=style) for cell in cells), _bar(rank), state)
    if len(ranks) > RANKS_SHOWN:
        table.add_row(Text(f"and {len(ranks) - RANKS_SHOWN} more", style="dim"))
    return table


def _chosen(ranks: list[Json], accused: tuple[int, ...]) -> list[Json]:
    """Return the ranks to draw, in order. Suspects have priority if there are too many ranks."""
    first = sorted(ranks, key=lambda rank: rank.get("rank") not in accused)[:RANKS_SHOWN]
    return sorted(first, key=lambda rank: number(rank.get("rank")))


def _bar(rank: Json) -> Text:
    """Return a bar for the time since the last step."""
    if rank.get("age_s") is None:
        return Text("no step yet", style="dim")
    age_s = number(rank["age_s"])
    cells = min(BAR_CELLS, max(1, round(age_s / BAR_S * BAR_CELLS)))
    style = "green" if age_s < WORRYING_S else "yellow"
    text = Text("━" * cells, style=style).append("─" * (BAR_CELLS - cells), style="bright_black")
    return text.append(f" {age_s:4.1f} s")


def _state(rank: Json, accused: tuple[int, ...]) -> str:
    mark = "◀ suspect" if rank.get("rank") in accused else ""
    return " ".join(filter(None, [rank_words(rank), mark]))


def _draw_history(history: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for moment, line in history:
        style = "bold red" if line.startswith("fault") else ""
        table.add_row(Text(moment, style="dim"), Text(line, style=style))
    return table
