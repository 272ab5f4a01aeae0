"""What is sent to the tower: reports, and dumps that wait for it in memory and on disk."""
