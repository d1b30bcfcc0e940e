"""Replies of language models, kept so that a repeated step gets the reply it got before."""

import json
from typing import Any

from sqlalchemy import Connection, func, insert, select

from cadenza.core.files import sha256_bytes
from cadenza.loop.store.database import Database
from cadenza.loop.store.leases import require_lease
from cadenza.loop.store.models import LlmReply
from cadenza.loop.store.plain_text import plain_text
from cadenza.loop.store.rows import Lease, ReplyRow, ReplyTotals


class Replies:
    """Stores and returns replies by (run, cycle, purpose, ordinal)."""

    def __init__(self, database: Database) -> None:
        """Look at the replies of ``database``."""
        self._database = database

    def get(self, run_id: str, cycle: int, purpose: str, ordinal: int) -> ReplyRow | None:
        """Return a reply; None if there is none yet."""
        with self._database.read() as connection:
            return _find(connection, _key(run_id, cycle, purpose, ordinal))

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
            connection.execute(
                insert(LlmReply).values(
                    **key,
                    provider=reply.provider,
                    model=reply.model,
                    prompt_sha256=reply.prompt_sha256,
                    response_sha256=sha256_bytes(reply.text.encode("utf-8", "surrogatepass")),
                    text=json.dumps(reply.text),
                    tokens_in=reply.tokens_in,
                    tokens_out=reply.tokens_out,
                    cost_usd=reply.cost_usd,
                    error=None if reply.error is None else plain_text(reply.error),
                )
            )
        return reply

    def totals(self, run_id: str) -> ReplyTotals:
        """Return what all replies of a run come to."""
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
    return None if row is None else ReplyRow(**{**row, "text": json.loads(row["text"])})
