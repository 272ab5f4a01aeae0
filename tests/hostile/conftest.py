"""Tests of this folder make many applications."""

from tests.hostile.servers import server
from tests.shared_parts import share_parts

__all__ = ["server"]

share_parts()
