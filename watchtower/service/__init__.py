"""What both daemons and the commands need: settings, logs, turns of owners, systemd."""
