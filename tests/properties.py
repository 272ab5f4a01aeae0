"""How many examples a property is tried with: the profiles of Hypothesis.

`quick` is the default, `pytest --hypothesis-profile thorough` takes the other one. Both try the
same examples each time: some properties of the diagnosis have exceptions so rare that only chance
finds them, and that must not fail a change that has nothing to do with them. `search` draws new
examples; use it to look for such exceptions.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

FULL = 100
"""`max_examples` of the profile in which every property has the examples it asks for."""


def register_profiles() -> None:
    """Register them and load the quick one; pytest loads another one if it is asked to."""
    # No property has a deadline of its own: the machine may be busy.
    settings.register_profile(
        "thorough",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=FULL,
        derandomize=True,
    )
    settings.register_profile("quick", settings.get_profile("thorough"), max_examples=FULL // 20)
    settings.register_profile("search", settings.get_profile("thorough"), derandomize=False)
    settings.load_profile("quick")


def is_thorough() -> bool:
    """Whether a test marked `thorough`, a loop over many cases, is to leave none out."""
    return settings.default.max_examples >= FULL


def examples(count: int, **more: Any) -> settings:
    """Settings of a property with `count` examples, fewer in a profile that has fewer."""
    share = settings.default.max_examples / FULL
    return settings(max_examples=max(1, round(count * share)), **more)
