"""The commands that have a tower dump a job now: `why JOB --now` and `stacks JOB`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any

from watchtower.commands.asking import exit_code_for, find_job
from watchtower.commands.client import DONE, TROUBLE, TowerClient
from watchtower.commands.printing import as_json, clean_lines, paint_verdict, wants_colour
from watchtower.commands.texts import name_frame
from watchtower.evidence.frames import StackNode, merge_stacks
from watchtower.wire.stacks import Frame, make_stack
from watchtower.writing.ranksets import format_ranks, name_ranks, parse_ranks

MAIN = "MainThread"


def show_verdict_now(client: TowerClient, args: argparse.Namespace) -> int:
    """Dump a job now and print the verdict. With --exit-code, as `show_verdict`."""
    job = find_job(client, args.job)
    if args.json or args.exit_code:
        verdict = client.diagnose_now(job)
        text = as_json(verdict) if args.json else str(verdict["summary"])
        code = exit_code_for([verdict]) if args.exit_code else DONE
    else:
        text, code = client.diagnose_now_text(job).rstrip(), DONE
    _print(text, is_json=args.json)
    return code


def show_stacks(client: TowerClient, args: argparse.Namespace) -> int:
    """Dump a job now and print its stacks, merged over ranks."""
    job = find_job(client, args.job)
    answer = client.stacks(job, args.rank, all_threads=args.all_threads)
    text = (
        as_json(answer)
        if args.json
        else "\n".join(describe_stacks(answer, outermost=args.outermost))
    )
    _print(text, is_json=args.json)
    return DONE if answer["items"] else TROUBLE


def _print(text: str, *, is_json: bool) -> None:
    text = text if is_json else clean_lines(text)
    is_coloured = not is_json and wants_colour(sys.stdout, os.environ)
    print(paint_verdict(text) if is_coloured else text)


def describe_stacks(answer: dict[str, Any], *, outermost: bool) -> Iterator[str]:
    """Yield the lines for an answer of `/api/v1/jobs/{job}/stacks`."""
    threads: dict[str, list[dict[str, Any]]] = {}
    for item in answer["items"]:
        threads.setdefault(str(item["thread"]), []).append(item)
    for thread, items in threads.items():
        if thread != MAIN:
            yield f"thread {thread}:"
        yield from _draw_tree(items) if outermost else _list_groups(items)
    if answer["left_out"]:
        yield f"{answer['left_out']} more stacks are left out: use --rank"
    yield from answer["missing_evidence"]


def _list_groups(items: list[dict[str, Any]]) -> Iterator[str]:
    for item in items:
        ranks = parse_ranks(item["ranks"])
        yield f"{name_ranks(ranks)} ({len(ranks)}), innermost frame first:"
        if item.get("native"):
            yield f"    [{item['native']}]"
        yield from (f"    {name_frame(frame)}" for frame in item["frames"])


def _draw_tree(items: list[dict[str, Any]]) -> Iterator[str]:
    """Draw one tree for all ranks: outermost frame first, with the ranks where they part."""
    # Two stacks of one rank belong to two threads of the same name: each is a line of its own.
    stacks = {}
    for number, item in enumerate(items):
        frames = tuple(
            Frame(function=f["function"], file=f["file"], line=f["line"]) for f in item["frames"]
        )
        native = item.get("native")
        innermost = (Frame(function=f"[{native}]", file="", line=0),) if native else ()
        stacks[number] = make_stack(innermost + frames)
    ranks = {number: parse_ranks(item["ranks"]) for number, item in enumerate(items)}

    def ranks_of(node: StackNode) -> str:
        return format_ranks(rank for number in node.ranks for rank in ranks[number])

    below: list[tuple[StackNode, int, str]] = [
        (child, 0, "") for child in reversed(merge_stacks(stacks).children)
    ]
    yield "outermost frame first:"
    while below:
        node, depth, above = below.pop()
        shown, frame = ranks_of(node), node.frame
        mark = f"  ◀ {shown}" if shown != above else ""
        if frame is not None:
            at = f" ({frame.file}:{frame.line})" if frame.file else ""
            yield f"    {'  ' * depth}{frame.function}{at}{mark}"
        # A frame that all ranks above share is not indented further.
        deeper = depth + (len(node.children) > 1)
        below += [(child, deeper, shown) for child in reversed(node.children)]
