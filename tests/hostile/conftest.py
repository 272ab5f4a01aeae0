"""Tests of this folder make many applications."""

from tests.shared_parts import share_parts

share_parts()
