"""watchtower: shows which rank hung a distributed training job, where and why."""

__version__ = "0.1.0"
