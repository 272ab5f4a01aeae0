"""The state of all jobs: processes, ranks and step times, computed from reports."""
