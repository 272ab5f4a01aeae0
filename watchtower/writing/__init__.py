"""How names, numbers, times and verdicts are written for people. Pure."""
