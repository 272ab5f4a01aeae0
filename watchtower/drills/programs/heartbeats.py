"""Tells the watchtower of every step. Programs that never beat do not even import its client."""

import contextlib


class Silence:
    """Stands in where nobody beats."""

    def beat(self, step, loss=None):
        pass

    def phase(self, name):
        return contextlib.nullcontext()


def choose_heartbeats(are_wanted):
    if not are_wanted:
        return Silence()
    import watchtower_heartbeat

    return watchtower_heartbeat
