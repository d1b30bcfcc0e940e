"""Text that both databases take: valid Unicode without NUL."""

from cadenza.core.errors import InputError


def plain_text(text: str) -> str:
    r"""Return ``text`` with what a database refuses as escapes, e.g. ``\x00`` or ``\udc80``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def require_plain(place: str, text: str) -> None:
    """Refuse text that says nothing or that a database would refuse.

    Raises:
        InputError: It is blank, holds NUL or is no valid Unicode.
    """
    if not text.strip():
        raise InputError(f"{place}: expected some words, got {text!r}; say it.")
    if plain_text(text) != text:
        raise InputError(f"{place}: expected text without NUL and stray bytes, got {text!r}.")
