"""Reviewed facts as data: launchers and system call numbers."""
