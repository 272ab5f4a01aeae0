"""The native libraries of the backend, loaded by their paths."""

import atexit
import ctypes
import functools
import os

FOLDER = os.environ.get("QUEUED_LIBRARIES", "")
SCHEDULES = ("spin", "yield", "sleep")

PyInstanceMethod_New = ctypes.pythonapi.PyInstanceMethod_New
PyInstanceMethod_New.restype = ctypes.py_object
PyInstanceMethod_New.argtypes = [ctypes.py_object]


def load(name):
    return ctypes.CDLL(os.path.join(FOLDER, name))


def load_with_gil(name):
    return ctypes.PyDLL(os.path.join(FOLDER, name))


def take_builtin(library, index):
    """Return a function of a library as a builtin. Calls of it have no Python frame."""
    library.builtin.restype = ctypes.py_object
    return library.builtin(index)


def as_method(builtin, *arguments):
    """Return a method without a Python frame that calls builtin(*arguments, self, ...)."""
    return PyInstanceMethod_New(functools.partial(builtin, *arguments))


class Device:
    """Streams of work. Stream 0 is the compute stream."""

    def __init__(self, schedule, depth, helper):
        self._held = load_with_gil("libcuda.so.1")
        self._held.stream_call.argtypes = [ctypes.c_int, ctypes.py_object, ctypes.c_int]
        for function in (self._held.stream_call, self._held.stream_end, self._held.stream_await):
            function.restype = ctypes.c_long
        self._held.stream_await.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long]
        self._held.stream_launch.argtypes = [ctypes.c_int, ctypes.c_double]
        self._held.stream_is_done.argtypes = [ctypes.c_int, ctypes.c_long]
        self._held.device_open(SCHEDULES.index(schedule), ctypes.c_long(depth), int(helper))
        self.with_room, self.after_device = (take_builtin(self._held, at) for at in range(2))
        self.compute = self.open_stream()
        atexit.register(self._held.device_leave)

    def open_stream(self):
        return self._held.stream_open()

    def run(self, stream, seconds):
        """Queue a kernel; never wait."""
        self._held.stream_launch(stream, seconds)

    def call(self, stream, start, *, can_be_asked):
        """Queue a collective; return its number in the stream.

        `start` returns gloo's work. `can_be_asked`: whether its is_completed() becomes true.
        """
        return self._held.stream_call(stream, start, int(can_be_asked))

    def order(self, stream, other, number=None):
        """Let a stream wait for work of another one: all that is queued now, or up to a number."""
        if number is None:
            number = self._held.stream_end(other)
        self._held.stream_await(stream, other, number)

    def is_done(self, stream, number):
        return bool(self._held.stream_is_done(stream, number))

    def address(self, name):
        return ctypes.cast(getattr(self._held, name), ctypes.c_void_p)
