"""Replies that were given once and hold for ever: in the store of a run, or in a file.

A recording file has one JSON object per line: the key (``cycle``, ``purpose``, ``ordinal``), the
fields of a `ReplyRow`, and ``response_sha256``, which is checked at reading.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import sha256_bytes
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.errors import LLMCallError
from cadenza.loop.events.log_file import LogFile
from cadenza.loop.llm.factory import make_llm
from cadenza.loop.llm.guard import CallLimits, GuardedLLM
from cadenza.loop.llm.place import Place, current_place
from cadenza.loop.llm.prices import Price
from cadenza.loop.llm.protocol import (
    DEFAULT_MAX_TOKENS,
    Answer,
    LLMClient,
    NullLLM,
    Question,
)
from cadenza.loop.store.rows import Lease, ReplyRow

if TYPE_CHECKING:
    from cadenza.loop.store.replies import Replies

#: Cycle, purpose, ordinal.
ReplyKey: TypeAlias = tuple[int, str, int]


class ReplyLog(Protocol):
    """Replies of one run by key."""

    def get(self, key: ReplyKey) -> ReplyRow | None:
        """Return a reply; None if there is none yet."""
        ...

    def record(self, key: ReplyKey, reply: ReplyRow) -> ReplyRow:
        """Keep a reply and return it, or return the one that is there: the first one holds."""
        ...

    def spent_usd(self) -> float:
        """Return what the replies cost together, US dollars; unknown costs count as nothing."""
        ...


class RecordedLLM:
    """Gives each call the reply recorded for its place, and asks only where there is none."""

    def __init__(
        self, client: GuardedLLM, log: ReplyLog, *, max_cost_usd: float = math.inf
    ) -> None:
        """Ask ``client`` and record in ``log``.

        Args:
            client: The model.
            log: Where replies are kept.
            max_cost_usd: Most that all replies of the log may cost, US dollars. A call that could
                cost more than is left of it is not made: its reply is a recorded failure.

        Raises:
            ConfigurationError: There is a limit, but no price.
        """
        if client.price is None and max_cost_usd < math.inf:
            raise ConfigurationError(
                f"max_cost_usd: expected the prices of the model beside it, got {max_cost_usd} "
                "without them; name them, or set no limit."
            )
        self._client = client
        self._log = log
        self._max_cost_usd = max_cost_usd

    def complete(
        self, prompt: str, *, system: str | None = None, max_tokens: int = DEFAULT_MAX_TOKENS
    ) -> str:
        """Return the reply; a recorded failure is the empty text again.

        Raises:
            NotReadyError: The call stands in no `cadenza.loop.llm.place.asking` block.
            StoreError: The log refused, e.g. because another controller took the run over.
        """
        place: Place = current_place()
        key = (place.cycle, place.purpose, place.next_ordinal())
        recorded = self._log.get(key)
        if recorded is None:
            reply = self._client.reply(
                prompt,
                system=system,
                max_tokens=max_tokens,
                left_usd=self._max_cost_usd - self._log.spent_usd(),
            )
            recorded = self._log.record(key, reply)
        return recorded.text


class StoreReplies:
    """The replies of the run that a lease is for."""

    def __init__(self, replies: "Replies", lease: Callable[[], Lease] | Lease) -> None:
        """Use ``JobStore.replies`` under a lease, or under the one that a call returns."""
        self._replies = replies
        self._lease = (lambda: lease) if isinstance(lease, Lease) else lease

    def get(self, key: ReplyKey) -> ReplyRow | None:
        """Return a reply; None if there is none yet."""
        return self._replies.get(self._lease().run_id, *key)

    def record(self, key: ReplyKey, reply: ReplyRow) -> ReplyRow:
        """Keep a reply and return it, or return the one that is there.

        Raises:
            StaleLeaseError: Another controller took the run over.
        """
        return self._replies.record(self._lease(), *key, reply)

    def spent_usd(self) -> float:
        """Return what the run's replies cost together, US dollars."""
        return self._replies.totals(self._lease().run_id).cost_usd


class ReplyFile:
    """A recording file with one writer at a time; a line that a kill left half is cut off."""

    def __init__(self, path: Path) -> None:
        """Open or create the file and own it until `close`.

        Raises:
            EventLogError: Another writer owns it, or the file system refused.
            IntegrityError: A line is no recorded reply.
        """
        self._log = LogFile(path)
        try:
            self._rows = read_recording(path)
        except IntegrityError:
            self._log.close()
            raise

    def get(self, key: ReplyKey) -> ReplyRow | None:
        """Return a reply; None if there is none yet."""
        return self._rows.get(key)

    def record(self, key: ReplyKey, reply: ReplyRow) -> ReplyRow:
        """Append a reply, durably, and return it, or return the one that is there.

        Raises:
            EventLogError: The file system refused.
        """
        if key not in self._rows:
            self._log.append(_line(key, reply))
            self._rows[key] = reply
        return self._rows[key]

    def spent_usd(self) -> float:
        """Return what the replies cost together, US dollars."""
        return sum(row.cost_usd or 0.0 for row in self._rows.values())

    def close(self) -> None:
        """Give the file free."""
        self._log.close()


class MirroredReplies:
    """A log whose replies are also kept in a recording file, for a replay elsewhere."""

    def __init__(self, log: ReplyLog, mirror: ReplyFile) -> None:
        """Take replies from ``log`` and copy them to ``mirror``."""
        self._log = log
        self._mirror = mirror

    def get(self, key: ReplyKey) -> ReplyRow | None:
        """Return a reply; None if there is none yet."""
        reply = self._log.get(key)
        return None if reply is None else self._mirror.record(key, reply)

    def record(self, key: ReplyKey, reply: ReplyRow) -> ReplyRow:
        """Keep a reply in both and return it, or return the one that is there."""
        return self._mirror.record(key, self._log.record(key, reply))

    def spent_usd(self) -> float:
        """Return what the replies cost together, US dollars."""
        return self._log.spent_usd()


def recorded_llm(
    spec: str | None,
    log: ReplyLog,
    *,
    limits: CallLimits | None = None,
    price: Price | None = None,
    max_cost_usd: float = math.inf,
) -> LLMClient:
    """Return the client of a run: guarded, its replies recorded; `NullLLM` for no model.

    Args:
        spec: ``"provider:model"``, or None; see `cadenza.loop.llm.factory`.
        log: Where replies are kept.
        limits: What a reply may take; the defaults if None.
        price: Price of the model; None if it is not known.
        max_cost_usd: Most that all replies of the log may cost, US dollars.

    Raises:
        ConfigurationError: The provider is unknown, the model is missing, Gemini has no key, or
            there is a limit without a price.
        LLMPackageMissingError: The provider's package is not installed.
    """
    client = make_llm(spec)
    if isinstance(client, NullLLM):
        return client
    return RecordedLLM(GuardedLLM(client, limits, price), log, max_cost_usd=max_cost_usd)


def replay(path: Path) -> RecordedLLM:
    """Return a client that gives the replies of a recording, and the empty text beyond them.

    Raises:
        IntegrityError: The file is missing, or a line is no recorded reply.
    """
    if not path.is_file():
        raise IntegrityError(f"{path}: expected a recording of replies, got no file.")
    return RecordedLLM(GuardedLLM(_NothingMore(), CallLimits(retries=0)), _Frozen(path))


def read_recording(path: Path) -> dict[ReplyKey, ReplyRow]:
    """Return the replies of a recording; a last line without its end is left out.

    Raises:
        IntegrityError: A line is no recorded reply, or its text does not match its digest.
    """
    rows: dict[ReplyKey, ReplyRow] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        key, reply = _parsed(line, f"{path}, line {number}")
        rows.setdefault(key, reply)
    return rows


class _Frozen:
    """The replies of a file, and what was asked beyond them, in memory only."""

    def __init__(self, path: Path) -> None:
        self._rows = read_recording(path)

    def get(self, key: ReplyKey) -> ReplyRow | None:
        return self._rows.get(key)

    def record(self, key: ReplyKey, reply: ReplyRow) -> ReplyRow:
        return self._rows.setdefault(key, reply)

    def spent_usd(self) -> float:
        return 0.0


class _NothingMore:
    """The end of a recording."""

    provider = "replay"
    model = "recording"

    def ask(self, question: Question) -> Answer:
        """Fail."""
        raise LLMCallError(f"the recording has no reply to prompt {question.sha256()[:12]}")


def _line(key: ReplyKey, reply: ReplyRow) -> bytes:
    cycle, purpose, ordinal = key
    document = {
        "cycle": cycle,
        "purpose": purpose,
        "ordinal": ordinal,
        **asdict(reply),
        "response_sha256": sha256_bytes(reply.text.encode()),
    }
    return json.dumps(document, allow_nan=False).encode("ascii") + b"\n"


def _parsed(line: bytes, source: str) -> tuple[ReplyKey, ReplyRow]:
    document = parse_json_object(line, source=source)
    match document:
        case {
            "cycle": int(cycle),
            "purpose": str(purpose),
            "ordinal": int(ordinal),
            "provider": str(),
            "model": str(),
            "prompt_sha256": str(),
            "text": str(text),
            "response_sha256": str(digest),
        }:
            pass
        case _:
            raise IntegrityError(f"{source}: expected a recorded reply, got other keys or types.")
    if sha256_bytes(text.encode("utf-8", "replace")) != digest:
        raise IntegrityError(f"{source}: expected a text of digest {digest}, got another text.")
    known: dict[str, Any] = {
        field.name: document[field.name] for field in fields(ReplyRow) if field.name in document
    }
    return (cycle, purpose, ordinal), ReplyRow(**known)
