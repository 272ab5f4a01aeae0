"""Collectors: cheap reads of a rank, at every interval. One file each."""
