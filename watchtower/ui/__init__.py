"""The web pages of the tower."""
