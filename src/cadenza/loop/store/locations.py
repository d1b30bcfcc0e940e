"""Where a job store is: a path or an SQLAlchemy URL, shown and kept without its passwords.

A password is used for connecting and goes nowhere else. Whoever goes on with a run gives it anew:
in the URL, or where libpq looks for it (``PGPASSWORD``, ``~/.pgpass``, a service file). A URL that
was shown or kept, with `HIDDEN` in place of the password, therefore names no password.

Source:  libpq's connection parameters, https://www.postgresql.org/docs/current/libpq-connect.html
"""

import json
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from cadenza.core.errors import ConfigurationError
from cadenza.core.strict_json import parse_json_object

#: What is shown in place of a password; SQLAlchemy shows the same.
HIDDEN: Final = "***"
#: Keys behind the question mark of a URL that hold passwords, too.
_SECRET_KEYS: Final = (
    "password",
    "sslpassword",
    "oauth_client_secret",
    "scram_client_key",
    "scram_server_key",
)


def url_of(location: Path | str) -> URL:
    """Return the URL to connect to, with the password that it names and PostgreSQL's driver.

    Raises:
        ConfigurationError: It is malformed or names another kind of database.
    """
    url = _parsed(location)
    if url.drivername not in ("sqlite", "postgresql", "postgresql+psycopg"):
        raise ConfigurationError(
            f"store {shown(url)}: expected sqlite:///... or postgresql+psycopg://..., "
            f"got {url.drivername!r}; use one of these."
        )
    if url.drivername == "sqlite":
        return url
    url = url.set(drivername="postgresql+psycopg").difference_update_query(
        [key for key in _SECRET_KEYS if url.query.get(key) == HIDDEN]
    )
    return url._replace(password=None) if url.password == HIDDEN else url


def shown(location: Path | str | URL) -> str:
    """Return a location as it may be shown and kept: every password in it is `HIDDEN`.

    Raises:
        ConfigurationError: It is a malformed URL.
    """
    url = location if isinstance(location, URL) else _parsed(location)
    secrets = [key for key in _SECRET_KEYS if key in url.query]
    if url.password is None and not secrets and not isinstance(location, URL):
        return str(location)
    masked = url.update_query_dict(dict.fromkeys(secrets, HIDDEN))
    return masked.render_as_string(hide_password=True).replace(quote(HIDDEN), HIDDEN)


def config_to_keep(config_json: str) -> str:
    """Return a configuration's document as it may be kept: its ``store`` without passwords.

    A document without one is returned as it is.
    """
    document = parse_json_object(config_json.encode(), source="config_json")
    store = document.get("store")
    if not isinstance(store, str):
        return config_json
    kept = shown(store)
    return config_json if kept == store else json.dumps({**document, "store": kept})


def _parsed(location: Path | str) -> URL:
    """Return the URL of a location; what cannot be read is not quoted, it may hold a password."""
    if isinstance(location, Path) or "://" not in location:
        return URL.create("sqlite", database=str(location))
    try:
        return make_url(location)
    except (ArgumentError, ValueError):  # the latter: a port that is no number
        kind = location.partition("://")[0]
        raise ConfigurationError(
            f"store {kind}://...: expected a path or an SQLAlchemy URL such as "
            "postgresql+psycopg://user@host:5432/database, got one that cannot be read; write "
            "'@', ':' and '/' in a name or password as %40, %3A and %2F."
        ) from None  # the cause quotes parts of the URL
