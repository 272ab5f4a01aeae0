"""What `watchtower` does at a terminal: asks a tower, silences, acknowledges, replays."""
