"""Interprets single dumps and reports, without case or job: stacks, threads, kernel waits, endings,
collective logs, movement."""
