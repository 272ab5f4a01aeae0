"""What holds for every test: a property has no deadline of its own, for the machine may be busy."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("watchtower", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("watchtower")
