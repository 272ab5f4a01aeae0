"""Sends heartbeats. A program without heartbeats rarely imports the client."""

import contextlib


class Silence:
    """Replaces the client in programs without heartbeats."""

    def beat(self, step, loss=None):
        pass

    def phase(self, name):
        return contextlib.nullcontext()


def choose_heartbeats(are_wanted, is_imported):
    """Return what sends heartbeats. The client may be imported, for its other uses, without any."""
    if not are_wanted and not is_imported:
        return Silence()
    import watchtower_heartbeat

    return watchtower_heartbeat if are_wanted else Silence()
