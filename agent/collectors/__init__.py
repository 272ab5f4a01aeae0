"""Collectors: cheap reads of a rank, every interval. One file each."""
