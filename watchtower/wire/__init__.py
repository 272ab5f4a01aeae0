"""Words that cross the network: frozen dataclasses of the standard library, nothing else.

Rules of this package: one field per kind (no unions of dataclasses), open vocabularies are `str`,
closed enums fall back to OTHER, ages never timestamps, unknown fields are ignored by every reader,
and each bound is checked in `__post_init__` so that a decoder reports it with its path. A field
keeps its name for ever: other releases send it, and stores contain it.
"""

PROTOCOL_VERSION = 1
"""Raised only when an old reader would misunderstand a new message; adding fields does not."""
