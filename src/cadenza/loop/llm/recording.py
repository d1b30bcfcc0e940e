"""Replies that were given once and hold for ever: in the store of a run, or in a file.

A recording file has one JSON object per line: the key (``cycle``, ``purpose``, ``ordinal``), the
fields of a `ReplyRow`, and ``response_sha256``, which is checked at reading. A line whose text is
null books a call before it is made; the line of its reply settles it.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import sha256_bytes
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.errors import LLMCallError
from cadenza.loop.events.log_file import LogFile
from cadenza.loop.jobs.stopping import StopCheck, never
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

    def book(self, key: ReplyKey, reply: ReplyRow) -> None:
        """Keep, durably, what asking for a reply can cost, in place of what was booked before."""
        ...

    def booked_usd(self, key: ReplyKey) -> float:
        """Return what is booked for a reply that is not there, US dollars."""
        ...

    def spent_usd(self) -> float:
        """Return what the replies cost together, those that are booked included, US dollars.

        Unknown costs count as nothing.
        """
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
            StopRequestedError: The run is asked to stop, and there is no recorded reply.
        """
        place: Place = current_place()
        key = (place.cycle, place.purpose, place.next_ordinal())
        question = Question(prompt=prompt, system=system, max_tokens=max_tokens, timeout_s=0.0)
        recorded = self._log.get(key)
        if recorded is None:
            reply = self._asked(key, question)
            recorded = self._log.record(key, replace(reply, about=place.about))
        if recorded.prompt_sha256 != question.sha256() or recorded.about is not None:
            place.about = recorded.about
        place.error = recorded.error
        return recorded.text

    def _asked(self, key: ReplyKey, question: Question) -> ReplyRow:
        """Return the model's reply; it costs what killed calls for it can have cost, too."""
        before_usd = self._log.booked_usd(key)

        def with_killed(reply: ReplyRow) -> ReplyRow:
            cost_usd = None if reply.cost_usd is None else before_usd + reply.cost_usd
            return replace(reply, cost_usd=cost_usd)

        reply = self._client.reply(
            question.prompt,
            system=question.system,
            max_tokens=question.max_tokens,
            left_usd=self._max_cost_usd - self._log.spent_usd(),
            book=lambda booked: self._log.book(key, with_killed(booked)),
        )
        return with_killed(reply)


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

    def book(self, key: ReplyKey, reply: ReplyRow) -> None:
        """Keep what asking for a reply can cost.

        Raises:
            StaleLeaseError: Another controller took the run over.
        """
        self._replies.book(self._lease(), *key, reply)

    def booked_usd(self, key: ReplyKey) -> float:
        """Return what is booked for a reply that is not there, US dollars."""
        return self._replies.booked_usd(self._lease().run_id, *key)

    def spent_usd(self) -> float:
        """Return what the run's replies cost together, booked ones included, US dollars."""
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
            self._rows, self._booked = _read(path)
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
            self._booked.pop(key, None)
        return self._rows[key]

    def book(self, key: ReplyKey, reply: ReplyRow) -> None:
        """Append what asking for a reply can cost, durably; nothing where nobody knows.

        Raises:
            EventLogError: The file system refused.
        """
        if key not in self._rows and reply.cost_usd is not None:
            self._log.append(_line(key, reply, booked=True))
            self._booked[key] = reply

    def booked_usd(self, key: ReplyKey) -> float:
        """Return what is booked for a reply that is not there, US dollars."""
        return self._booked[key].cost_usd or 0.0 if key in self._booked else 0.0

    def spent_usd(self) -> float:
        """Return what the replies cost together, booked ones included, US dollars."""
        rows = [*self._rows.values(), *self._booked.values()]
        return sum(row.cost_usd or 0.0 for row in rows)

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

    def book(self, key: ReplyKey, reply: ReplyRow) -> None:
        """Keep what asking for a reply can cost, in the log: a replay asks nobody."""
        self._log.book(key, reply)

    def booked_usd(self, key: ReplyKey) -> float:
        """Return what is booked for a reply that is not there, US dollars."""
        return self._log.booked_usd(key)

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
    stop: StopCheck = never,
) -> LLMClient:
    """Return the client of a run: guarded, its replies recorded; `NullLLM` for no model.

    Args:
        spec: ``"provider:model"``, or None; see `cadenza.loop.llm.factory`.
        log: Where replies are kept.
        limits: What a reply may take; the defaults if None.
        price: Price of the model; None if it is not known.
        max_cost_usd: Most that all replies of the log may cost, US dollars.
        stop: Says whether the run is asked to stop; a call then ends with `StopRequestedError`.

    Raises:
        ConfigurationError: The provider is unknown, the model is missing, Gemini has no key, or
            there is a limit without a price.
        LLMPackageMissingError: The provider's package is not installed.
    """
    client = make_llm(spec)
    if isinstance(client, NullLLM):
        return client
    guarded = GuardedLLM(client, limits, price, stop=stop)
    return RecordedLLM(guarded, log, max_cost_usd=max_cost_usd)


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
    return _read(path)[0]


class _Frozen:
    """The replies of a file, and what was asked beyond them, in memory only."""

    def __init__(self, path: Path) -> None:
        self._rows = read_recording(path)

    def get(self, key: ReplyKey) -> ReplyRow | None:
        return self._rows.get(key)

    def record(self, key: ReplyKey, reply: ReplyRow) -> ReplyRow:
        return self._rows.setdefault(key, reply)

    def book(self, key: ReplyKey, reply: ReplyRow) -> None:
        """Do nothing: nobody is asked."""

    def booked_usd(self, key: ReplyKey) -> float:  # noqa: ARG002  # the protocol's argument
        return 0.0

    def spent_usd(self) -> float:
        return 0.0


class _NothingMore:
    """The end of a recording."""

    provider = "replay"
    model = "recording"

    def ask(self, question: Question) -> Answer:
        """Fail."""
        raise LLMCallError(f"the recording has no reply to prompt {question.sha256()[:12]}")


def _read(path: Path) -> tuple[dict[ReplyKey, ReplyRow], dict[ReplyKey, ReplyRow]]:
    """Return the replies of a recording, and the last booking of each that is not there."""
    rows: dict[ReplyKey, ReplyRow] = {}
    booked: dict[ReplyKey, ReplyRow] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        key, reply, is_booked = _parsed(line, f"{path}, line {number}")
        if is_booked:
            booked[key] = reply
        else:
            rows.setdefault(key, reply)
    return rows, {key: reply for key, reply in booked.items() if key not in rows}


def _line(key: ReplyKey, reply: ReplyRow, *, booked: bool = False) -> bytes:
    cycle, purpose, ordinal = key
    document = {
        "cycle": cycle,
        "purpose": purpose,
        "ordinal": ordinal,
        **asdict(reply),
        "response_sha256": sha256_bytes(reply.text.encode()),
        **({"text": None} if booked else {}),
    }
    return json.dumps(document, allow_nan=False).encode("ascii") + b"\n"


def _parsed(line: bytes, source: str) -> tuple[ReplyKey, ReplyRow, bool]:
    """Return key and reply of a line, and whether the line only books it."""
    document = parse_json_object(line, source=source)
    booked = "text" in document and document["text"] is None
    document |= {"text": ""} if booked else {}
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
    return (cycle, purpose, ordinal), ReplyRow(**known), booked
