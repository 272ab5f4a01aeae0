"""watchtower: names the rank that hung a distributed training job, where and why."""

__version__ = "0.1.0"
