"""Measures how often watchtower is right about real hung jobs: run the drills, store results,
report.
"""
