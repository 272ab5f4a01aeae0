"""Loops of libraries that wait for work and run it, and the place of a stack without own code."""

from __future__ import annotations

import pytest

from tests.diagnosis.builders import frames
from watchtower.evidence.frames import FrameClass, read_stack

ACTOR = "main_loop @ray/_private/worker.py:879 < <module> @ray/_private/workers/default_worker.py:9"
ENGINE = (
    "_process_input_queue @vllm/v1/engine/core.py:1180 < run_busy_loop @vllm/v1/engine/core.py:1"
)
WORKER = (
    "acquire_read @vllm/distributed/device_communicators/shm_broadcast.py:430 < "
    "__enter__ @contextlib.py:137 < "
    "dequeue @vllm/distributed/device_communicators/shm_broadcast.py:510 < "
)
IN_LOCK = "wait @threading.py:331 < "
IN_QUEUE = "wait @threading.py:331 < get @queue.py:171 < "
IN_PIPE = "recv_bytes @multiprocessing/connection.py:216 < get @multiprocessing/queues.py:103 < "


@pytest.mark.parametrize(
    ("stack", "frame_class"),
    [
        (ACTOR, FrameClass.SERVER),
        (IN_LOCK + ACTOR, FrameClass.SERVER),
        ("synchronize @torch/cuda/__init__.py:800 < " + ACTOR, FrameClass.DEVICE),
        ("execute_model @vllm/v1/worker/gpu_worker.py:40 < " + ACTOR, FrameClass.NONE),
        (IN_LOCK + "fit train.py:9 < " + ACTOR, FrameClass.LOCK),
        (IN_LOCK + "run @lib/base.py:9 < " + ACTOR, FrameClass.LOCK),
        (IN_QUEUE + ENGINE, FrameClass.SERVER),
        (IN_PIPE + ENGINE, FrameClass.SERVER),
        (WORKER + "get_response @vllm/v1/executor/multiproc_executor.py:9 < " + ENGINE, "wait"),
        (WORKER + "worker_busy_loop @vllm/v1/executor/multiproc_executor.py:9", "wait"),
        ("forward @vllm/model.py:9 < worker_busy_loop @vllm/v1/executor/x.py:9", FrameClass.NONE),
    ],
)
def test_a_loop_waits_for_work_only_if_no_work_is_inside(stack, frame_class):
    wanted = FrameClass.COLLECTIVE if frame_class == "wait" else frame_class
    assert read_stack(frames(stack)).frame_class is wanted


@pytest.mark.parametrize(
    ("stack", "where"),
    [
        (IN_LOCK + "load @vllm/lora.py:22 < run @vllm/w.py:9", "lora.py:22 in load"),
        (IN_LOCK + "load @vllm/lora.py:22 < fit train.py:9", "train.py:9 in fit"),
        (IN_LOCK + "_bootstrap @multiprocessing/process.py:314", "threading.py:331 in wait"),
    ],
)
def test_the_place_of_a_stack_without_own_code_is_in_the_package_that_waits(stack, where):
    assert read_stack(frames(stack)).where == where
