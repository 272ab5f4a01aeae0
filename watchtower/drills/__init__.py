"""Drills: jobs that hang on purpose, for the demo, the end-to-end tests and a user's own tests.

A drill uses the product only from outside: it starts the commands and uses the HTTP API.
"""
