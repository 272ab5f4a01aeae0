"""What one dump shows, without case or job: stacks, threads, kernel waits, endings, movement."""
