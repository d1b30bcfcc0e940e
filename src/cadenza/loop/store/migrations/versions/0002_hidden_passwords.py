"""Passwords in the configurations of runs are hidden.

The text of a URL is matched here, as it was read when this was written: a migration does not
change with the package. What a password was is overwritten in SQLite's file; a PostgreSQL server
forgets it with the next vacuum of the table.
"""

import hashlib
import json
import re
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_IN_ADDRESS = re.compile(r"^([\w+]+://[^:/]*:)[^@]*@")
_IN_OPTIONS = re.compile(r"([?&](?:password|sslpassword)=)[^&]*")
_TEXTS = ("id", "config_json", "config_sha256")
_RUNS = sa.table("runs", *(sa.column(name, sa.Text()) for name in _TEXTS))


def upgrade() -> None:
    """Change the rows."""
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        connection.execute(sa.text("PRAGMA secure_delete = ON"))
    for row in connection.execute(sa.select(_RUNS)).mappings().all():
        kept = _hidden(row["config_json"])
        if kept != row["config_json"]:
            digest = hashlib.sha256(kept.encode()).hexdigest()
            values = {"config_json": kept, "config_sha256": digest}
            connection.execute(sa.update(_RUNS).where(_RUNS.c.id == row["id"]).values(values))


def _hidden(config_json: str) -> str:
    """Return a configuration without the passwords in its ``store``."""
    document: dict[str, Any] = json.loads(config_json)
    store = document.get("store")
    if not isinstance(store, str):
        return config_json
    hidden = _IN_OPTIONS.sub(r"\1***", _IN_ADDRESS.sub(r"\1***@", store))
    return config_json if hidden == store else json.dumps({**document, "store": hidden})
