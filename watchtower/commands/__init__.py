"""What `watchtower` does at a terminal: asks a tower, mutes, acknowledges, replays an incident."""
