"""The pattern of a GPU, from its load: each one, and none between the thresholds."""

from __future__ import annotations

import pytest

from agent.collectors.gpu.pattern import (
    LEAST_LOADS,
    WINDOW_S,
    Load,
    Pattern,
    Stillness,
    find_pattern,
)

NOW = 100.0


def pattern_of(*loads: tuple[float, float, float | None], reasons: int = 0) -> str:
    """Return the pattern of loads a second apart: utilization, memory, share of the power limit."""
    first = NOW - len(loads) + 1
    taken = [Load(first + n, *load, reasons) for n, load in enumerate(loads)]
    return find_pattern(taken, NOW).value


@pytest.mark.parametrize(
    ("load", "pattern"),
    [
        ((1.0, 0.40, 0.82), "working"),  # a training step on a large model
        ((0.97, 0.02, 0.70), "working"),  # multiplies matrices, reads little
        ((0.30, 0.15, 0.25), "working"),  # a small model
        ((1.0, 0.0, 0.14), "spinning"),
        ((1.0, 0.01, 0.36), "spinning"),
        ((1.0, 0.0, 0.48), "unknown"),  # a loop without end, perhaps
        ((1.0, 0.05, 0.30), "unknown"),
        ((0.60, 0.0, 0.20), "unknown"),
        ((1.0, 0.0, None), "unknown"),  # the power is not known
        ((0.0, 0.0, 0.10), "idle"),
        ((0.01, 0.0, None), "idle"),
    ],
)
def test_a_load_that_stays_is_a_pattern(load, pattern):
    assert pattern_of(*[load] * 5) == pattern


def test_one_working_moment_shows_that_it_works():
    spins, works = (1.0, 0.0, 0.14), (1.0, 0.4, 0.8)
    assert pattern_of(spins, spins, works, spins, spins) == "working"
    idles = (0.0, 0.0, 0.1)
    assert pattern_of(spins, idles, spins, idles, spins) == "unknown"


@pytest.mark.parametrize(
    ("units", "pattern"),
    [(0.32, "working"), (0.05, "working"), (0.03, "unknown"), (0.004, "spinning")],
)
def test_counters_of_the_units_decide_instead_of_memory_and_power(units, pattern):
    hot = [Load(NOW - n, 1.0, 0.3, 0.9, 0, units) for n in range(5)]
    cool = [Load(NOW - n, 1.0, 0.0, 0.1, 0, units) for n in range(5)]
    assert {find_pattern(loads, NOW).value for loads in (hot, cool)} == {pattern}


def test_few_or_old_loads_show_nothing():
    spins = (1.0, 0.0, 0.14)
    assert pattern_of(*[spins] * (LEAST_LOADS - 1)) == "unknown"
    old = [Load(NOW - WINDOW_S - n, *spins, 0) for n in range(1, 6)]
    assert find_pattern(old, NOW) is Pattern.UNKNOWN


@pytest.mark.parametrize(
    ("reasons", "is_slowed"),
    [(0x08, True), (0x20, True), (0x40, True), (0x80, True), (0x04, False), (0x01, False)],
)
def test_clocks_that_heat_or_a_power_brake_reduces_are_a_pattern(reasons, is_slowed):
    works = (1.0, 0.4, 0.8)
    assert pattern_of(*[works] * 5, reasons=reasons) == ("throttled" if is_slowed else "working")
    idles = (0.0, 0.0, 0.1)
    assert pattern_of(*[idles] * 5, reasons=reasons) == "idle"


def test_a_load_needs_the_utilization_and_not_the_power():
    assert Load.of({"power_w": 70.0}, 1.0) is None
    values = {"utilization": 0.5, "memory_utilization": 0.1, "power_w": 350.0}
    assert Load.of(values, 1.0) == Load(1.0, 0.5, 0.1, None, 0)
    assert Load.of(values | {"power_limit_w": 700.0, "clock_reasons": 64.0}, 1.0) == Load(
        1.0, 0.5, 0.1, 0.5, 64
    )
    counted = Load.of(values | {"tensor_active": 0.2, "dram_active": 0.3}, 1.0)
    assert counted is not None
    assert counted.units == 0.3


def still(values_of, seconds=60, energy=True):
    """Read the counters of a GPU every second, and return since when they stand still."""
    found = Stillness()
    for at in range(seconds + 1):
        values = {"power_w": 312.417, "utilization": 1.0, "memory_utilization": 0.0}
        values |= {"energy_j": 1e6 + 312.0 * min(at, 10) // 10 * 10} if energy else {}
        found.take(values | values_of(at), float(at))
    return found.since(float(seconds))


def test_counters_that_rose_before_and_stand_still_are_frozen():
    assert still(lambda at: {}) == 10
    assert still(lambda at: {}, seconds=44) is None
    assert still(lambda at: {"sampled_at": 5.0}) == 10


@pytest.mark.parametrize(
    "values_of",
    [
        lambda at: {"energy_j": 1e6 + 70.0 * (at // 10)},
        lambda at: {"sampled_at": at // 10 * 10.0},
        lambda at: {"power_w": 312.417 + 0.001 * (at % 7)},
        lambda at: {"utilization": 1.0 - 0.01 * (at % 11 == 0)},
        lambda at: {"energy_j": 1e6},
        lambda at: {"energy_j": 0.0, "power_w": 0.0},
        lambda at: {"power_w": 0.0},
    ],
    ids=["energy", "samples", "power", "load", "never_rose", "no_counters", "no_power"],
)
def test_counters_of_which_any_changes_or_that_never_rose_are_not_frozen(values_of):
    assert still(values_of) is None


def test_a_gpu_without_a_counter_of_its_energy_is_never_frozen():
    assert still(lambda at: {}, energy=False) is None
    assert still(lambda at: {"energy_j": 1e6 + at} if at < 20 else {}, energy=False) is None
