"""Which rank hung the job, where and why: from the evidence to the content of a verdict."""
