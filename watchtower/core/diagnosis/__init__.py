"""Who hung it, where and why: evidence read, rules run, a verdict's content."""
