"""Tools that watch a job from inside, on the same drills: one file each, in this order."""

from benchmarks.accuracy.live import monitored_barrier, nvrx
from benchmarks.accuracy.live.tool import Tool

TOOLS: tuple[Tool, ...] = (monitored_barrier.TOOL, nvrx.TOOL)
