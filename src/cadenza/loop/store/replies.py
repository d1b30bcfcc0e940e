"""Replies of language models, kept so that a repeated step gets the reply it got before.

A call is booked before it is made: the row of its reply is there without a text, at the most that
the call can cost, until the reply settles it.
"""

import json
from typing import Any, Final

from sqlalchemy import Connection, func, insert, select, update

from cadenza.core.files import sha256_bytes
from cadenza.loop.store.database import Database, plain_text
from cadenza.loop.store.leases import require_lease
from cadenza.loop.store.models import LlmReply
from cadenza.loop.store.rows import Lease, ReplyRow, ReplyTotals

#: The text of a reply that is booked and not there.
_NO_TEXT: Final = json.dumps(None)


class Replies:
    """Stores and returns replies by (run, cycle, purpose, ordinal)."""

    def __init__(self, database: Database) -> None:
        """Look at the replies of ``database``."""
        self._database = database

    def get(self, run_id: str, cycle: int, purpose: str, ordinal: int) -> ReplyRow | None:
        """Return a reply; None if there is none yet, though it may be booked."""
        with self._database.read() as connection:
            return _find(connection, _key(run_id, cycle, purpose, ordinal))

    def booked_usd(self, run_id: str, cycle: int, purpose: str, ordinal: int) -> float:
        """Return what is booked for a reply that is not there, US dollars."""
        key = _key(run_id, cycle, purpose, ordinal)
        statement = select(LlmReply.cost_usd).filter_by(**key, text=_NO_TEXT)
        with self._database.read() as connection:
            return connection.scalar(statement) or 0.0

    def is_asked(self, run_id: str, cycle: int) -> bool:
        """Return whether a cycle asked for a reply that is not there."""
        waiting = select(func.count()).where(
            LlmReply.run_id == run_id, LlmReply.cycle == cycle, LlmReply.text == _NO_TEXT
        )
        with self._database.read() as connection:
            return bool(connection.scalar(waiting))

    def book(self, lease: Lease, cycle: int, purpose: str, ordinal: int, reply: ReplyRow) -> None:
        """Keep what asking for a reply can cost, in place of what was booked before.

        Nothing changes where the reply is there.

        Raises:
            StaleLeaseError: Another controller took the run over.
        """
        key = _key(lease.run_id, cycle, purpose, ordinal)
        values = _values(reply) | {"text": _NO_TEXT, "response_sha256": ""}
        with self._database.write() as connection:
            require_lease(connection, lease)
            _write(connection, key, values)

    def record(
        self, lease: Lease, cycle: int, purpose: str, ordinal: int, reply: ReplyRow
    ) -> ReplyRow:
        """Store a reply and return it, or return the one that is there: the first one holds.

        Raises:
            StaleLeaseError: Another controller took the run over.
        """
        key = _key(lease.run_id, cycle, purpose, ordinal)
        with self._database.write() as connection:
            require_lease(connection, lease)
            present = _find(connection, key)
            if present is not None:
                return present
            _write(connection, key, _values(reply))
        return reply

    def totals(self, run_id: str) -> ReplyTotals:
        """Return what all replies of a run come to, with those that are booked."""
        columns = (
            func.count().label("calls"),
            func.count(LlmReply.error).label("failed"),
            func.sum(LlmReply.cost_usd).label("cost_usd"),
        )
        with self._database.read() as connection:
            found = connection.execute(select(*columns).where(LlmReply.run_id == run_id)).one()
        return ReplyTotals(calls=found.calls, failed=found.failed, cost_usd=found.cost_usd or 0.0)


def _key(run_id: str, cycle: int, purpose: str, ordinal: int) -> dict[str, Any]:
    return {"run_id": run_id, "cycle": cycle, "purpose": purpose, "ordinal": ordinal}


def _values(reply: ReplyRow) -> dict[str, Any]:
    told = reply.text if reply.about is None else {"text": reply.text, "about": reply.about}
    return {
        "provider": reply.provider,
        "model": reply.model,
        "prompt_sha256": reply.prompt_sha256,
        "response_sha256": sha256_bytes(reply.text.encode("utf-8", "surrogatepass")),
        "text": json.dumps(told),
        "tokens_in": reply.tokens_in,
        "tokens_out": reply.tokens_out,
        "cost_usd": reply.cost_usd,
        "error": None if reply.error is None else plain_text(reply.error),
    }


def _write(connection: Connection, key: dict[str, Any], values: dict[str, Any]) -> None:
    """Add a row, or replace one that is only booked."""
    booked = update(LlmReply).filter_by(**key, text=_NO_TEXT).values(**values)
    if connection.execute(booked).rowcount == 0 and _find(connection, key) is None:
        connection.execute(insert(LlmReply).values(**key, **values))


def _find(connection: Connection, key: dict[str, Any]) -> ReplyRow | None:
    columns = (
        LlmReply.provider,
        LlmReply.model,
        LlmReply.prompt_sha256,
        LlmReply.text,
        LlmReply.tokens_in,
        LlmReply.tokens_out,
        LlmReply.cost_usd,
        LlmReply.error,
    )
    row = connection.execute(select(*columns).filter_by(**key)).mappings().one_or_none()
    if row is None:
        return None
    told = json.loads(row["text"])
    match told:
        case None:
            return None
        case {"text": text, "about": about}:
            return ReplyRow(**{**row, "text": text}, about=about)
        case _:
            return ReplyRow(**{**row, "text": told})
