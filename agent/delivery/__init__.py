"""Delivery to the tower: reports, and dumps that wait for the tower in memory and on disk."""
