"""Detects jobs that are stuck or slow: conditions, suspicions, patience, incidents."""
