"""What follows from incidents: outages, similar ones, post-mortem, redaction. Pure."""
