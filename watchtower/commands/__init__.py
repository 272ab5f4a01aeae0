"""The commands of `watchtower` at a terminal: ask a tower, silence, acknowledge, replay."""
