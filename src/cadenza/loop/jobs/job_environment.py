"""The environment variables of a job: those of its controller, without the controller's secrets.

A job runs programs of others. With the keys of language models it could spend money, with the
store's address it could answer the questions that wait for a person.

Limits:  against programs that look for what they were not given, only another user or machine
         helps: a process may read the variables of others of the same user.
"""

from collections.abc import Mapping
from typing import Final

#: The run's store and its cluster, and the keys of the language models; an address may hold one.
_SECRETS: Final = frozenset(
    {
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_BASE_URL",
        "CADENZA_STORE",
        "GEMINI_API_KEY",
        "GOOGLE_API_KEY",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "PGPASSFILE",
        "PGPASSWORD",
        "PGSERVICEFILE",
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_TOKEN_PATH",
    }
)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what of ``environ`` a job gets."""
    return {name: value for name, value in environ.items() if name not in _SECRETS}
