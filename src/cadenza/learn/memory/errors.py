"""Errors of the replay memory.

Each also derives from the built-in that callers of the original memory catch.
"""

from cadenza.core.errors import InputError, NotReadyError


class UnknownColumnError(InputError, KeyError):
    """A column name that the table does not have."""

    def __str__(self) -> str:
        """Return the message itself; `KeyError` would show its repr."""
        return str(self.args[0]) if self.args else ""


class UnknownEpisodeError(InputError, KeyError):
    """An episode id that is not stored."""

    def __str__(self) -> str:
        """Return the message itself; `KeyError` would show its repr."""
        return str(self.args[0]) if self.args else ""


class DuplicateEpisodeError(InputError, AssertionError):
    """An episode id that is already stored."""


class NoWindowError(NotReadyError, ValueError):
    """No stored episode is long enough for the windows asked for."""


class SegmentTreeError(InputError, AssertionError, IndexError):
    """A segment tree was given a size, index or sum outside its range."""
