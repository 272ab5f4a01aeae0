"""Who waits for whom: collective records, the wait-for graph, and ranks in different calls."""
