"""Sends heartbeats. A program without heartbeats does not even import the client."""

import contextlib


class Silence:
    """Replaces the client in programs without heartbeats."""

    def beat(self, step, loss=None):
        pass

    def phase(self, name):
        return contextlib.nullcontext()


def choose_heartbeats(are_wanted):
    if not are_wanted:
        return Silence()
    import watchtower_heartbeat

    return watchtower_heartbeat
