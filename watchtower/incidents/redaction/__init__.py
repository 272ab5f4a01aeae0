"""Replaces names in the evidence of an incident, so that it can be given to other people."""
