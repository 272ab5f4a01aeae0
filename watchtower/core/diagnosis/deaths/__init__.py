"""Ranks that have ended: how, who went first-hand, and who only because a peer had gone."""
