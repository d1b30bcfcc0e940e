"""What a PostgreSQL server or its driver means by a refusal, in one message each."""

import sqlite3
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from cadenza.core.errors import ConfigurationError
from cadenza.loop.errors import StoreAccessError

if TYPE_CHECKING:
    from psycopg import Error


def refused_password(name: str, error: DBAPIError) -> StoreAccessError | None:
    """Return the refusal of a password that is missing or wrong; None if that is not the matter.

    Args:
        name: Where the store is, without passwords.
        error: What a connection or statement raised.
    """
    told = _told_by_postgresql(error)
    if told is None or told.pgconn is None:
        return None
    if told.pgconn.needs_password:
        got = "none"
    elif "password authentication failed" in str(told):  # there is no code for it
        got = "a wrong one"
    else:
        return None
    return StoreAccessError(
        f"job store {name}: expected this user's password, got {got}; set PGPASSWORD, add a line "
        "to ~/.pgpass, or write it into the URL of --store or CADENZA_STORE (no run keeps it)."
    )


def refusal_at_opening(
    name: str, error: DBAPIError
) -> StoreAccessError | ConfigurationError | None:
    """Return what to say of an option or statement that was refused while the store was opened.

    Args:
        name: Where the store is, without passwords.
        error: What was raised.
    """
    told = _told_by_postgresql(error)
    if told is None:
        return None
    if told.sqlstate is None:  # nothing that a server said
        return ConfigurationError(
            f"job store {name}: expected options that the driver knows, got '{told}'; correct the "
            "URL."
        )
    return StoreAccessError(
        f"job store {name}: expected a user who may create and change its tables, got '{told}'; "
        "grant that, or name a database that this user owns."
    )


def _told_by_postgresql(error: DBAPIError) -> "Error | None":
    if isinstance(error.orig, sqlite3.Error):
        return None
    from psycopg import Error

    return error.orig if isinstance(error.orig, Error) else None
