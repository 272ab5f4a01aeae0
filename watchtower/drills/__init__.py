"""Drills: jobs that hang on purpose. Demo, end-to-end tests and a user's fire drill are this code.

A drill uses the product from outside only: it starts the commands and asks the HTTP API.
"""
