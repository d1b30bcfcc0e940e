"""How the dashboard listens: uvicorn, with a limit on everything that a visitor can hold up.

Requests:  head and body must arrive within `REQUEST_S`, and a client must read something of its
           answer every `TAKING_S`; others are cut off, so that they keep no connection.
Proxies:   forwarded addresses and schemes count if they come from a proxy that is named; behind
           any other, all visitors have its address, and share its failures.
Limits:    connections of all visitors together, not of one: that is a proxy's or a firewall's.
"""

import asyncio
from collections.abc import Collection
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Longest time for a request to arrive, and for a part of an answer to be read, s.
REQUEST_S: Final = 20.0
TAKING_S: Final = 60.0
#: Longest wait for open pages when the server ends, s.
_GRACE_S: Final = 1
#: Open connections.
_MAX_CONNECTIONS: Final = 512


def make_server(app: ASGIApp, *, proxies: Collection[str] = ()) -> uvicorn.Server:
    """Return a server of the dashboard that trusts what these proxies forward."""
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        log_level="error",  # each malformed request is a warning: they would fill a disk
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=_MAX_CONNECTIONS,
    )
    return uvicorn.Server(config)


class _Connection(H11Protocol):
    """A connection that is cut when its request or its reader stalls."""

    _incoming: asyncio.TimerHandle | None = None
    _outgoing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._incoming = self.loop.call_later(REQUEST_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._incoming = self._incoming or self.loop.call_later(REQUEST_S, self.transport.abort)
        elif self._incoming is not None:
            self._incoming.cancel()
            self._incoming = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._outgoing = self.loop.call_later(TAKING_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._outgoing is not None:
            self._outgoing.cancel()

    def send_400_response(self, msg: str) -> None:
        answering: Any = self.cycle  # None before the first request
        if answering and not answering.response_complete:
            answering.disconnected = True  # garbage behind a request: its answer goes nowhere
            answering.message_event.set()
        is_answered = self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE)
        if not is_answered and not (answering and self.scope["method"] == "HEAD"):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._incoming, self._outgoing):
            if timer is not None:
                timer.cancel()
