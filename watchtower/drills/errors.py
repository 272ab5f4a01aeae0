"""The error of a drill that could not run. A wrong verdict is a result, not an error."""

from __future__ import annotations


class DrillError(Exception):
    """The drill could not run, so the product's answer was not tested."""

    def __init__(self, message: str, help_text: str = "") -> None:
        super().__init__(message)
        self.help_text = help_text
