"""Heartbeats for programs in whose environments nothing is installed: this folder on PYTHONPATH.

Python imports `sitecustomize` at each start. This one runs the one that would have been imported
without it, and then does what the .pth file of an installed client does. Any Python may read it, so
it is written for all of them. Errors of the other `sitecustomize` are reported as ever; ours are
silent, because programs that have nothing to do with training also start here.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENT = ("watchtower_heartbeat", "watchtower_heartbeat_auto")
OLDEST = (3, 10)


class ClientFinder:
    """The last entry of `sys.meta_path`: finds the client beside this folder, and nothing else.

    An environment with a client of its own uses that one.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return where the client is."""
        if name not in CLIENT:
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [os.path.dirname(os.path.dirname(HERE))])


def run_next():
    """Run the `sitecustomize` that comes after this one on the path, in its place, if any does."""
    others = [place for place in sys.path if os.path.abspath(place) != HERE]
    if sys.version_info < (3, 5):  # noqa: UP036
        run_next_of_old_python(others)
        return
    from importlib.machinery import PathFinder

    found = PathFinder.find_spec("sitecustomize", others)
    if found is None or found.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(found)
    sys.modules["sitecustomize"] = module
    found.loader.exec_module(module)


def run_next_of_old_python(others):
    """Do the same on Python 2."""
    import imp

    try:
        found = imp.find_module("sitecustomize", others)
    except ImportError:
        return
    imp.load_module("sitecustomize", *found)


def switch_on():
    """Load the hook that waits for torch, if it is asked for and this Python can run the client."""
    if os.environ.get("WATCHTOWER_HEARTBEAT", "").lower() != "auto" or sys.version_info < OLDEST:
        return
    try:
        sys.meta_path.append(ClientFinder)
        import watchtower_heartbeat_auto

        watchtower_heartbeat_auto.switch_on()
    except Exception:  # the folder may just have been removed
        return


try:
    run_next()
finally:
    switch_on()
