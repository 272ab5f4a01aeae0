import pytest

from tests.diagnosis.builders import a_kernel
from watchtower.evidence.kernel import classify_wait


@pytest.mark.parametrize(
    ("syscall", "target", "expected", "text"),
    [
        ("read", "/mnt/a.tar", "file", "blocked in read() on /mnt/a.tar"),
        ("read", "pipe:[31]", "pipe", "blocked in read() on pipe:[31]"),
        ("write", "/tmp/x.fifo", "pipe", "blocked in write() on /tmp/x.fifo"),
        ("read", "tcp 10.0.0.1:2 -> 10.0.0.2:3", "network", None),
        ("recvfrom", "", "network", "blocked in recvfrom()"),
        ("read", "unix socket", "local", "blocked in read() on unix socket"),
        ("sendto", "unix socket /run/x.sock", "local", None),
        ("read", "socket:[31]", "network", None),
        ("fcntl", "/job/vocab.lock", "lock", "waiting for a lock in fcntl() on /job/vocab.lock"),
        ("epoll_wait", "anon_inode:[eventpoll]", "poll", None),
        ("futex", "", "lock", "waiting for a lock in futex()"),
        ("clock_nanosleep", "", "sleep", "sleeping in clock_nanosleep()"),
        ("wait4", "", "child", "waiting for a child process in wait4()"),
        ("", "", "", ""),
        ("some_new_call", "", "", ""),
    ],
)
def test_a_system_call_says_what_is_waited_for(syscall, target, expected, text):
    reading = classify_wait(a_kernel("S", syscall, target))
    assert reading.wait_class == expected
    assert text is None or reading.text == text


@pytest.mark.parametrize(
    ("wchan", "expected"),
    [
        ("request_wait_answer", "fuse"),
        ("fuse_get_req", "fuse"),
        ("rpc_wait_bit_killable", "nfs"),
        ("io_schedule", "io"),
        ("folio_wait_bit_common", "io"),
        ("kernel_clone", "child"),
        ("__refrigerator", "frozen"),
        ("futex_wait_queue", "lock"),
        ("hrtimer_nanosleep", "sleep"),
        ("anon_pipe_read", "pipe"),
        ("do_epoll_wait", "poll"),
        ("sk_wait_data", "network"),
        ("os_acquire_rwlock_write", "gpu"),
    ],
)
def test_the_kernel_function_says_it_too(wchan, expected):
    assert classify_wait(a_kernel("D", wchan=wchan)).wait_class == expected


def test_the_kernel_function_counts_before_the_call():
    reading = classify_wait(a_kernel("D", "read", "/mnt/a", wchan="request_wait_answer"))
    assert reading.wait_class == "fuse"
    assert reading.text == "waiting for a FUSE file system to answer, in read() on /mnt/a"


def test_a_target_is_cleaned():
    assert "\x1b" not in classify_wait(a_kernel("S", "read", "/a\x1b[2J")).text


def test_a_frozen_cgroup_counts_before_what_the_thread_was_caught_in():
    reading = classify_wait(a_kernel("D", syscall="clock_nanosleep", frozen=True))
    assert (reading.wait_class, reading.text) == ("frozen", "frozen by its cgroup")
