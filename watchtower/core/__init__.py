"""Decisions: values in, values out, `now` an argument. No clock, I/O, logging or framework."""
