"""The benchmark of a scrape works, and a large job has few series."""

from __future__ import annotations

from benchmarks.scrape import measure


def test_a_large_job_has_few_series():
    cost = measure(1024)
    assert cost.ratio > 0
    assert 20 < cost.series <= 200
