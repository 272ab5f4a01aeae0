"""Tests of this folder make many applications."""

from tests.shared_schemas import share_schemas

share_schemas()
