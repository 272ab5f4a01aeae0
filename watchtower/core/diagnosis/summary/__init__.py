"""The summary of a case: one file for each part that pages show."""
