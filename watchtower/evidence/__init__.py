"""What one piece of evidence shows, without job: stacks, threads, kernel waits, endings, GPUs; and
the case, which is all evidence about one job at one moment."""
