"""Measures the GPUs of this machine: `python -m tests.system.gpu.record FILE` (make test-gpu).

It writes what it measured between the two marks of the file: which GPU, how long the calls of the
driver take, which values it has, and the figures of each load, by which patterns are judged.
Without a GPU the file stays as it is.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from agent.collectors.gpu.device import CALL_BUCKETS_S, FIELDS, RARE_FIELDS, UNITS
from tests.system.gpu.real_gpus import (
    SETTLES_S,
    LoadError,
    NoGpuError,
    RealGpus,
    States,
    describe,
    find_states,
)

BEGIN, END = "<!-- measured -->", "<!-- end -->"

MEASURES_S = 20.0
"""Seconds of each load that are measured, after it has settled."""

FIGURES = {
    "utilization": "utilization",
    "memory_utilization": "memory utilization",
    "power": "power, share of the limit",
    "sm_active": "processors",
    "tensor_active": "tensor cores",
    "dram_active": "memory bandwidth",
    "nvlink_sent_per_s": "NVLink, bytes a second",
    "sm_clock_hz": "clock, Hz",
    "clock_reasons": "clock reasons",
}
"""Values of a load, and their words."""

OTHERS = (
    *("energy_j", "sampled_at", "temperature_c", "memory_used_bytes", "nvlinks_up"),
    *("remapped_corrected", "pcie_width", "mig", "fabric_state", "fabric_status", "fabric_health"),
)
"""Values that have calls of their own."""


def record(gpus: RealGpus, states: States, *, seconds: float, settles_s: float) -> str:
    """Measure each load, and return the text."""
    rows: dict[str, dict[str, list[float]]] = {}
    patterns: dict[str, str] = {}
    gpus.watch(settles_s)
    for name, load in states.items():
        try:
            with load():
                gpus.watch(settles_s)
                seen = gpus.watch(seconds)
                patterns[name] = gpus.pattern()
        except LoadError as error:
            print(f"{name}: the load could not be made: {error}", file=sys.stderr)
            continue
        rows[name] = {figure: [*_values_of(figure, seen)] for figure in FIGURES}
    return "\n".join(_write(gpus, rows, patterns))


def _values_of(figure: str, seen: list[dict[str, float]]) -> Iterator[float]:
    for values in seen:
        if figure == "power" and values.get("power_limit_w"):
            yield values["power_w"] / values["power_limit_w"]
        elif figure in values:
            yield values[figure]


def _write(
    gpus: RealGpus, rows: dict[str, dict[str, list[float]]], patterns: dict[str, str]
) -> Iterator[str]:
    state, node = gpus.state, gpus.collector._node
    model = state.reading.names.get("model", "unknown")
    yield f"Measured on {time.strftime('%Y-%m-%d')}: {len(gpus.all_states)} x {model},"
    yield f"driver {node.driver}."
    yield ""
    yield "| call | number | mean | share within 1 ms | slowest |"
    yield "|---|---|---|---|---|"
    for kind, (*counts, total_s) in sorted(node.durations.items()):
        number = sum(counts)
        quick = sum(counts[: CALL_BUCKETS_S.index(0.001) + 1]) / max(1.0, number)
        mean_us = 1e6 * total_s / max(1.0, number)
        yield f"| {kind} | {number:.0f} | {mean_us:.0f} us | {quick:.1%} | {_slowest(counts)} |"
    yield ""
    known = state.reading.values
    names = sorted({*FIELDS, *RARE_FIELDS, *UNITS, *OTHERS})
    yield f"Values of this GPU: {_list(name for name in names if name in known)}."
    yield f"It has no {_list(name for name in names if name not in known)}."
    yield ""
    yield f"| figure | {' | '.join(rows)} |"
    yield f"|---|{'---|' * len(rows)}"
    yield f"| pattern | {' | '.join(patterns[name] for name in rows)} |"
    for figure, words in FIGURES.items():
        yield f"| {words} | {' | '.join(describe(each[figure]) for each in rows.values())} |"


def _slowest(counts: list[float]) -> str:
    ends = [*(f"within {1000 * end:g} ms" for end in CALL_BUCKETS_S), "over 1 s"]
    return ends[max((index for index, count in enumerate(counts) if count), default=0)]


def _list(names: Iterator[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "further one"


def replace_measured(text: str, measured: str) -> str:
    """Return the text of the file with another part between its marks."""
    between = f"{BEGIN}\n\n{measured}\n\n{END}"
    return re.sub(f"{BEGIN}.*?{END}", lambda _: between, text, count=1, flags=re.DOTALL)


def main(path: Path) -> int:
    """Measure, and write the file."""
    try:
        gpus = RealGpus()
    except NoGpuError as error:
        print(f"no GPU was measured, and {path} is unchanged: {error}")
        return 0
    try:
        states = find_states(gpus.state.reading.names["uuid"])
        if len(states) == 1:
            print("torch is not installed, so only the idle GPU is measured")
        measured = record(gpus, states, seconds=MEASURES_S, settles_s=SETTLES_S)
    finally:
        gpus.stop()
    path.write_text(replace_measured(path.read_text("utf-8"), measured), encoding="utf-8")
    print(f"{path}: written")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
