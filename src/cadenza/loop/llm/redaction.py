"""Taking keys and characters that no store accepts out of what a service sends back."""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

#: Shapes of keys of the services we speak with; a service may quote a key in its complaint.
_KEY_SHAPES: Final = re.compile(r"\b(?:sk-[A-Za-z0-9_*-]{4,}|AIza[A-Za-z0-9_*-]{4,})")
#: What stands where a key stood.
REDACTED: Final = "[key]"
#: Characters of an error that are kept.
_MAX_ERROR_CHARS: Final = 300


def secrets_of(address: str | None) -> tuple[str, ...]:
    """Return what an address holds to prove oneself with: its password, or its only user name."""
    user, at, _ = (address or "").partition("//")[2].partition("/")[0].rpartition("@")
    if not at:
        return ()
    name, _, password = user.partition(":")
    secret = password or name
    return (user, secret, unquote(secret))


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` with every secret, and what looks like a key, replaced."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, REDACTED)
    return _KEY_SHAPES.sub(REDACTED, text)


def error_text(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` as one short printable line without secrets."""
    line = " ".join(redacted(text, secrets).split())
    return "".join(c if c.isprintable() else "?" for c in line)[:_MAX_ERROR_CHARS]


def storable(text: str) -> str:
    """Return ``text`` without NUL and lone surrogates, which UTF-8 or PostgreSQL refuse."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
