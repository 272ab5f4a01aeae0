"""Alerts that the tower sends itself: text, labels, outbox, destinations."""
