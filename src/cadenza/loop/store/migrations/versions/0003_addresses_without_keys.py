"""Addresses of language models in the configurations of runs lose users, passwords and queries.

A run goes on with the key that the environment gives. The text is read here as it was when this
was written: a migration does not change with the package. What an address held is overwritten in
SQLite's file; a PostgreSQL server forgets it with the next vacuum of the table.
"""

import hashlib
import json
import re
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_USER = re.compile(r"^(.*?//|[^@]*@).*@", re.DOTALL)
_QUERY = re.compile(r"((?:@|//).*?)[?#].*", re.DOTALL)
_TEXTS = ("id", "config_json", "config_sha256")
_RUNS = sa.table("runs", *(sa.column(name, sa.Text()) for name in _TEXTS))


def upgrade() -> None:
    """Change the rows."""
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        connection.execute(sa.text("PRAGMA secure_delete = ON"))
    for row in connection.execute(sa.select(_RUNS)).mappings().all():
        kept = _cleaned(row["config_json"])
        if kept != row["config_json"]:
            digest = hashlib.sha256(kept.encode()).hexdigest()
            values = {"config_json": kept, "config_sha256": digest}
            connection.execute(sa.update(_RUNS).where(_RUNS.c.id == row["id"]).values(values))


def _cleaned(config_json: str) -> str:
    """Return a configuration whose ``llm`` proves nothing."""
    document: dict[str, Any] = json.loads(config_json)
    llm = document.get("llm")
    if not isinstance(llm, str):
        return config_json
    cleaned = _QUERY.sub(r"\1", _USER.sub(r"\1", llm))
    return config_json if cleaned == llm else json.dumps({**document, "llm": cleaned})
