"""A scrape of a large job blocks the event loop for less time than one check of all jobs."""

from __future__ import annotations

from benchmarks.scrape import measure


def test_a_scrape_reads_a_large_job_in_less_time_than_a_check_takes():
    cost = measure(4096)
    assert cost.ratio < 1.5
    assert 20 < cost.series <= 200
