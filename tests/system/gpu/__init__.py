"""Tests that need a GPU and its driver: `make test-gpu`. Without one they are skipped."""
