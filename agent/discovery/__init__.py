"""Discovery: finds the ranks of this node, the job of each rank, and the page of each rank."""
