"""The fixture `tell` of the tests of the tower: a story of one tower with an imagined clock."""

from tests.tower.conftest import tell

__all__ = ["tell"]
