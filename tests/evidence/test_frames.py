from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_BARRIER,
    IN_DDP_BACKWARD,
    IN_INIT,
    IN_LOCK,
    IN_MULTI_LOADER,
    IN_TORCH_ALL_REDUCE,
    IN_TORCH_INIT,
    IN_USER_CODE,
    REQUESTING,
    SAVING,
    a_stack,
    frames,
)
from tests.diagnosis.strategies import STACKS
from watchtower.evidence.frames import (
    PATTERNS,
    TRAITS,
    ClassTraits,
    FrameClass,
    classify_frame,
    describe_frames,
    group_stacks,
    merge_stacks,
    read_stack,
)


def class_of(text):
    (frame,) = frames(text)
    return classify_frame(frame).value


@pytest.mark.parametrize(
    "text",
    [
        "all_reduce @torch/distributed/distributed_c10d.py:2911",
        "barrier @torch/distributed/distributed_c10d.py:4700",
        "recv @torch/distributed/distributed_c10d.py:2400",
        "wait_tensor @torch/distributed/_functional_collectives.py:99",
        "RingReducer.allreduce /home/bob/comm/links.py:9",
        "ring_all_reduce /job/net.py:9",
        "Communicator._allgather_bytes /job/net.py:9",
        "reduce_scatter_tensor /job/net.py:9",
        "sync_gradients /job/step.py:9",
        "average_model_parameters /job/step.py:9",
        "synchronize @horovod/torch/mpi_ops.py:1288",
        "finish_grad_sync @megatron/core/distributed/param_and_grad_buffer.py:370",
        "send_forward_recv_backward @megatron/core/pipeline_parallel/schedules.py:100",
        "_communicate @megatron/core/pipeline_parallel/p2p_communication.py:300",
        "Accelerator.wait_for_everyone @accelerate/accelerator.py:2700",
        "sync_global_devices @jax/experimental/multihost_utils.py:90",
        "Barrier.wait @threading.py:683",
        "recv_from_previous /job/pipeline.py:30",
        "_sync_module_states @torch/distributed/utils.py:290",
    ],
)
def test_calls_that_wait_for_other_ranks_are_collectives(text):
    assert class_of(text) == "collective"


@pytest.mark.parametrize(
    "text",
    [
        "init_process_group @torch/distributed/distributed_c10d.py:1775",
        "_store_based_barrier @torch/distributed/distributed_c10d.py:900",
        "_create_c10d_store @torch/distributed/rendezvous.py:189",
        "new_group /job/groups.py:8",
        "init @horovod/common/basics.py:60",
        "State.initialize @jax/_src/distributed.py:120",
        "TCPStore.__init__ /job/store.py:3",
        "wait_for_peers /job/net.py:22",
        "connect_to_master /job/net.py:22",
    ],
)
def test_calls_before_the_first_collective_are_set_up(text):
    assert class_of(text) == "init"


@pytest.mark.parametrize(
    "text",
    [
        "_MultiProcessingDataLoaderIter._next_data @torch/utils/data/dataloader.py:1412",
        "Corpus.__getitem__ /job/corpus.py:4",
        "__next__ /job/corpus.py:4",
        "ImageFolderDataset.open /job/images.py:4",
        "fetch_batch /job/train.py:4",
        "load_shard /job/train.py:4",
        "_prepare_next_batch /job/train.py:4",
        "train_loader /job/train.py:4",
        "anything_at_all /job/dataset.py:4",
        "DistributedSampler.order /job/x.py:4",
        "iterator @webdataset/tariterators.py:60",
    ],
)
def test_input_pipelines_are_data_loaders(text):
    assert class_of(text) == "dataloader"


@pytest.mark.parametrize(
    "text",
    [
        "save @torch/serialization.py:944",
        "save_checkpoint /job/train.py:1",
        "maybe_write_ckpt /job/train.py:1",
        "save_model /job/train.py:1",
        "Module.state_dict @torch/nn/modules/module.py:2200",
        "ModelCheckpoint.on_train_batch_end @lightning/pytorch/callbacks/model_checkpoint.py:300",
        "flush_all /job/checkpointing.py:8",
    ],
)
def test_savers_are_checkpoints(text):
    assert class_of(text) == "checkpoint"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("checkpoint @torch/utils/checkpoint.py:480", "none"),
        ("CheckpointFunction.forward /job/memory.py:80", "none"),
        ("broadcast_tensors @torch/functional.py:77", "none"),
        ("_fn @torch/_dynamo/eval_frame.py:600", "none"),
        ("_compile @torch/_dynamo/convert_frame.py:1000", "compile"),
        ("FileBaton.wait @torch/utils/file_baton.py:60", "compile"),
        ("backend_compile @jax/_src/compiler.py:300", "compile"),
        ("synchronize @torch/cuda/__init__.py:900", "device"),
        ("_engine_run_backward @torch/autograd/graph.py:829", "backward"),
        ("Model.backward /job/model.py:8", "user"),
        ("Adam.step @torch/optim/adam.py:220", "optimizer"),
        ("Event.wait @threading.py:629", "lock"),
        ("Queue.get @queue.py:171", "lock"),
        ("SocketIO.readinto @socket.py:706", "network"),
        ("Session.send @requests/sessions.py:700", "network"),
        ("Module._call_impl @torch/nn/modules/module.py:1750", "none"),
        ("sample_negatives /job/model.py:20", "user"),
        ("train_with_allreduce /job/train.py:20", "user"),
        ("generate_report /job/eval.py:20", "user"),
    ],
)
def test_other_frames(text, expected):
    assert class_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected", "what", "where"),
    [
        (IN_ALL_REDUCE, "collective", "all_reduce", "ring.py:131 in _read"),
        (IN_BARRIER, "collective", "barrier", "ring.py:131 in _read"),
        (IN_INIT, "init", "init_process_group", "ring.py:52 in _follow"),
        (IN_TORCH_INIT, "init", "init_process_group", "main.py:14 in setup"),
        (IN_TORCH_ALL_REDUCE, "collective", "all_reduce", "main.py:41 in train"),
        (IN_DDP_BACKWARD, "backward", "_engine_run_backward", "main.py:44 in train"),
        (FETCHING, "dataloader", "read", "data.py:31 in read"),
        (IN_MULTI_LOADER, "dataloader", "_try_get_data", "main.py:38 in train"),
        (SAVING, "checkpoint", "save", "main.py:60 in save_all"),
        (REQUESTING, "network", "readinto", "tracking.py:22 in register"),
        (IN_LOCK, "user", "flush", "metrics.py:33 in flush"),
        (IN_USER_CODE, "user", "score", "loss.py:17 in score"),
    ],
)
def test_real_stacks(text, expected, what, where):
    reading = read_stack(frames(text))
    assert (reading.frame_class.value, reading.what, reading.where) == (expected, what, where)


def test_a_hook_inside_backward_is_user_code():
    assert (
        read_stack(frames(f"hook /job/hooks.py:3 < {IN_DDP_BACKWARD}")).frame_class.value == "user"
    )


def test_a_socket_read_for_a_batch_is_the_data_loader():
    text = f"SocketIO.readinto @socket.py:706 < {FETCHING}"
    assert read_stack(frames(text)).frame_class.value == "dataloader"


def test_a_barrier_inside_set_up_is_set_up():
    text = (
        "barrier @torch/distributed/distributed_c10d.py:4700"
        " < init_process_group @torch/distributed/distributed_c10d.py:1775"
    )
    assert read_stack(frames(text)).frame_class.value == "init"


def test_a_reconnect_inside_a_collective_is_the_collective():
    text = f"Ring._wait_for_peer ring.py:160 < {IN_ALL_REDUCE}"
    reading = read_stack(frames(text))
    assert (reading.frame_class.value, reading.what) == ("collective", "all_reduce")


def test_user_code_that_a_librarys_collective_calls_has_not_begun_to_wait():
    """Pickling for an object collective, a signal handler: the call is there, the wait is not."""
    gather = (
        "_object_to_tensor @torch/distributed/distributed_c10d.py:2890"
        " < all_gather_object @torch/distributed/distributed_c10d.py:3010 < train /job/main.py:41"
    )
    reading = read_stack(frames(f"Vocabulary.__getstate__ /job/vocabulary.py:8 < {gather}"))
    assert (reading.frame_class.value, reading.where) == ("user", "vocabulary.py:8 in __getstate__")
    assert read_stack(frames(gather)).frame_class.value == "collective"
    assert (
        read_stack(frames(f"on_usr1 /job/main.py:7 < {IN_TORCH_ALL_REDUCE}")).frame_class.value
        == "user"
    )


def test_an_event_loop_with_nothing_to_run_waits_for_what_others_do():
    loop = (
        "BaseEventLoop._run_once @asyncio/base_events.py:1884"
        " < BaseEventLoop.run_forever @asyncio/base_events.py:607 < serve /job/main.py:9"
    )
    idle = f"EpollSelector.select @selectors.py:468 < {loop}"
    assert read_stack(frames(idle)).frame_class.value == "thread"
    running = f"Model.score /job/model.py:4 < Handle._run @asyncio/events.py:80 < {loop}"
    assert read_stack(frames(running)).frame_class.value == "user"


def test_bare_names_of_old_pythons_read_the_same():
    text = "__next__ /job/x.py:88 < train /job/main.py:4"
    assert read_stack(frames(text)).where == "x.py:88 in __next__"


def test_a_library_only_stack_shows_the_frame_that_gave_its_class():
    text = "acquire @foo/bar.py:1 < Event.wait @threading.py:629 < run @threading.py:900"
    assert read_stack(frames(text)).where == "threading.py:629 in wait"


def test_an_unknown_library_stack_shows_its_innermost_frame():
    reading = read_stack(frames("spin @foo/bar.py:1 < run @foo/bar.py:9"))
    assert (reading.frame_class.value, reading.where) == ("none", "bar.py:1 in spin")


def test_no_frames_say_nothing():
    assert read_stack(()) is None


def test_every_entry_of_the_table_can_match_only_by_a_condition():
    assert all(item.function or item.owner or item.file for item in PATTERNS)


@pytest.mark.parametrize(
    "text",
    [
        "Popen._wait @subprocess.py:2011 < Popen.wait @subprocess.py:1260 < push /job/s3.py:8",
        "Popen.communicate @subprocess.py:1198 < run @subprocess.py:549 < push /job/s3.py:8",
        "Popen.poll @multiprocessing/popen_fork.py:27"
        " < Popen.wait @multiprocessing/popen_fork.py:43"
        " < Process.join @multiprocessing/process.py:149 < main /job/train.py:9",
    ],
)
def test_waiting_for_a_program_it_started_is_a_class_of_its_own(text):
    assert read_stack(frames(text)).frame_class.value == "child"


def test_a_child_of_a_checkpoint_is_a_checkpoint():
    text = "Popen.wait @subprocess.py:1260 < upload_checkpoint /job/s3.py:8 < main /job/train.py:9"
    assert read_stack(frames(text)).frame_class.value == "checkpoint"


RUNS_STEP = (
    "run_with_checkpoint @acme/fit.py:71 < Loop.run @acme/fit.py:30"
    " < <module> /home/ann/job/main.py:80"
)
"""A library whose function is only called so: it runs the user's step."""


@pytest.mark.parametrize(
    ("inner", "expected", "where"),
    [
        ("step /job/main.py:41", "user", "main.py:41 in step"),
        (
            "_engine_run_backward @torch/autograd/graph.py:829"
            " < Tensor.backward @torch/_tensor.py:626 < step /job/main.py:44",
            "backward",
            "main.py:44 in step",
        ),
        (
            "SocketIO.readinto @socket.py:706 < step /job/main.py:43",
            "network",
            "main.py:43 in step",
        ),
        (
            "synchronize @torch/cuda/__init__.py:900 < step /job/main.py:45",
            "device",
            "main.py:45 in step",
        ),
        (
            "all_reduce @torch/distributed/distributed_c10d.py:2911 < step /job/main.py:46",
            "collective",
            "main.py:46 in step",
        ),
        (
            "Corpus.__getitem__ /job/x.py:4 < step /job/main.py:47",
            "dataloader",
            "x.py:4 in __getitem__",
        ),
        (
            "save_checkpoint /job/main.py:9 < step /job/main.py:48",
            "checkpoint",
            "main.py:9 in save_checkpoint",
        ),
        (
            "save @torch/serialization.py:944 < finish /job/main.py:60",
            "checkpoint",
            "main.py:60 in finish",
        ),
    ],
)
def test_a_librarys_function_does_not_say_what_the_users_code_in_it_is_for(inner, expected, where):
    reading = read_stack(frames(f"{inner} < {RUNS_STEP}"))
    assert (reading.frame_class.value, reading.where) == (expected, where)


@pytest.mark.parametrize(
    "wrapper",
    [
        "checkpoint_sequential @fairscale/nn/misc.py:30",
        "Checkpointed.forward @acme/nn.py:9",
        "CheckpointManager.run_step @acme/manager.py:9",
        "BatchLoader.for_each @acme/loops.py:9",
        "with_barrier @acme/loops.py:9",
    ],
)
def test_whatever_the_name_of_the_library_says(wrapper):
    inside = read_stack(frames(f"score /job/loss.py:7 < {wrapper} < <module> /job/main.py:80"))
    assert inside.frame_class.value == "user"


def test_a_library_alone_says_what_it_is_for():
    text = f"_flush @acme/io.py:7 < {RUNS_STEP}"
    assert read_stack(frames(text)).frame_class.value == "checkpoint"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Vocabulary.__getstate__ /job/vocabulary.py:8 < save @torch/serialization.py:944",
            "checkpoint",
        ),
        (
            "pad /job/main.py:8 < _MapDatasetFetcher.fetch @torch/utils/data/_utils/fetch.py:52",
            "dataloader",
        ),
        (
            "call /tmp/compiled/q.py:90 < benchmark @torch/_inductor/select_algorithm.py:9",
            "compile",
        ),
        ("Etcd.get /job/store.py:8 < rendezvous @torch/distributed/rendezvous.py:9", "init"),
    ],
)
def test_libraries_that_are_there_to_run_the_users_code_say_what_for(text, expected):
    reading = read_stack(frames(f"{text} < train /job/main.py:41"))
    assert reading.frame_class.value == expected


def test_a_wait_that_runs_user_code_has_not_begun_whoever_wraps_it():
    gather = "all_gather_object @torch/distributed/distributed_c10d.py:3010"
    gather += " < all_gather_words /job/words.py:3"
    text = f"Vocabulary.__getstate__ /job/vocabulary.py:8 < {gather} < train /job/main.py:41"
    assert read_stack(frames(text)).frame_class.value == "user"
    saved = text.replace("train /job", "save_checkpoint /job")
    assert read_stack(frames(saved)).frame_class.value == "checkpoint"


IMPLIED = [
    ("waits_for_ranks", "shows_wait_for_ranks"),
    ("waits_for_ranks", "may_spin_in_wait"),
    ("waits_for_ranks", "names_wait"),
    ("waits_if_asleep", "may_hide_collective"),
    ("hides_any_call", "may_hide_collective"),
    ("hides_any_call", "may_be_at_lock"),
    ("may_be_at_lock", "may_be_saving"),
    ("is_busy_elsewhere", "is_work"),
]

EXCLUDED = [
    # Frames that show a wait for ranks, or work without them, hide no collective.
    ("waits_for_ranks", "may_hide_collective"),
    ("is_busy_elsewhere", "may_hide_collective"),
    ("is_busy_elsewhere", "may_be_collective"),
    ("shows_purpose", "may_be_saving"),
    # Such a rank works, or waits inside its process.
    ("is_work", "waits_for_thread"),
    ("is_own_code", "shows_wait_for_ranks"),
]


def having(trait):
    return {each for each in FrameClass if getattr(each.traits, trait)}


def test_every_class_has_a_row():
    assert TRAITS.keys() == set(FrameClass)


@pytest.mark.parametrize("trait", [field.name for field in fields(ClassTraits)])
def test_every_trait_is_that_of_some_classes_only(trait):
    assert 0 < len(having(trait)) < len(FrameClass)


@pytest.mark.parametrize(("one", "other"), IMPLIED)
def test_a_trait_implies_another(one, other):
    assert having(one) <= having(other)


@pytest.mark.parametrize(("one", "other"), EXCLUDED)
def test_no_class_has_two_traits_that_contradict(one, other):
    assert not having(one) & having(other)


def test_a_collective_may_be_in_a_call_that_is_shown_or_in_a_wait_for_the_device():
    shown = having("shows_wait_for_ranks") | having("may_spin_in_wait")
    assert having("may_be_collective") == shown


stacks = st.dictionaries(
    st.integers(0, 60), st.sampled_from([a_stack(text) for text in STACKS]), max_size=30
)


def walk_tree(node, depth=0):
    """Return each node below the root with its depth, callers before what they call."""
    for child in node.children:
        yield depth, child
        yield from walk_tree(child, depth + 1)


@given(stacks, st.randoms(use_true_random=False))
def test_the_order_of_merging_does_not_matter(some, order):
    shuffled = list(some.items())
    order.shuffle(shuffled)
    assert merge_stacks(dict(shuffled)) == merge_stacks(some)
    assert group_stacks(dict(shuffled)) == group_stacks(some)


@given(stacks)
def test_no_rank_is_lost_or_doubled(some):
    tree = merge_stacks(some)
    ends = [rank for _, node in [(0, tree), *walk_tree(tree)] for rank in node.ending]
    assert sorted(ends) == sorted(some)
    assert tree.ranks == frozenset(some)
    members = [rank for item in group_stacks(some) for rank in item.ranks]
    assert sorted(members) == sorted(some)


@given(stacks)
def test_children_share_out_the_ranks_that_go_on(some):
    tree = merge_stacks(some)
    for _, node in walk_tree(tree):
        counts = [len(child.ranks) for child in node.children]
        assert sum(counts) + len(node.ending) == len(node.ranks)
        assert counts == sorted(counts, reverse=True)


@given(stacks, st.integers(0, 5))
def test_ranks_with_equal_stacks_cost_no_further_nodes(some, times):
    again = {rank + 100 * turn: stack for rank, stack in some.items() for turn in range(times + 1)}
    assert len(list(walk_tree(merge_stacks(again)))) == len(list(walk_tree(merge_stacks(some))))


def test_callers_come_before_what_they_call():
    tree = merge_stacks({0: a_stack("b x.py:2 < a x.py:1"), 1: a_stack("a x.py:1")})
    walked = [(depth, node.frame.function, sorted(node.ranks)) for depth, node in walk_tree(tree)]
    assert walked == [(0, "a", [0, 1]), (1, "b", [0])]


def test_a_stack_is_one_line_and_long_ones_are_cut():
    assert describe_frames(frames("A.b x.py:2 < a /y/z.py:1")) == "b x.py:2 < a z.py:1"
    assert describe_frames(frames("c x.py:3 < b x.py:2 < a x.py:1"), limit=1) == "c x.py:3 < …"
