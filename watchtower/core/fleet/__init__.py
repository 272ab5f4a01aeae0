"""Who is there: processes, ranks, jobs and their pace, rebuilt from reports."""
