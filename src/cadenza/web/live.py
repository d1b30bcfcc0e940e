"""Live updates as server-sent events: one poller per feed, however many listen.

Cost:     a feed is read twice a second while anybody listens.
Memory:   a listener who does not take its messages is dropped once its queue is full; its browser
          connects again, says what it had last (``Last-Event-ID``), and gets the rest.
Position: a feed's growing part (events of a run, bytes of a log) is counted; listeners get every
          item behind their own position once.
Failures: a poller waits for a store that is away; one that fails sends its listeners away, who
          connect again to a new one.
Source:   https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import StreamingResponse

from cadenza.core.errors import CadenzaError
from cadenza.web.site import printable

_logger = logging.getLogger(__name__)
#: Pause between two looks at a feed, s; between two signs of life to an idle browser, s; time until
#: a browser has to show again that it is let in, s.
PAUSE_S, _ALIVE_S, _LASTS_S = 0.5, 15.0, 3600.0
#: Listeners of one server, messages that wait for one of them, rounds that bring one up to date.
MAX_LISTENERS, _WAITING, _ROUNDS = 200, 32, 8


@dataclass(frozen=True, slots=True)
class Growth:
    """Items ``start`` (excluded) to ``end`` of what grows: events, or bytes of a log."""

    event: str
    items: Sequence[Any]
    start: int

    @property
    def end(self) -> int:
        """Position behind the items."""
        return self.start + len(self.items)

    def after(self, position: int) -> str:
        """Return the message with the items behind ``position``."""
        items = self.items[max(0, position - self.start) :]
        body = printable(items) if isinstance(items, bytes) else items
        return f"id: {self.end}\nevent: {self.event}\ndata: {json.dumps(body)}\n\n"


class Feed:
    """What listeners look at; its methods run in a thread. This one never changes."""

    def end(self) -> int:
        """Return the position behind all that is there."""
        return 0

    def read(self, _position: int, /) -> Growth | None:
        """Return what grew behind a position, at most a part of it; None if nothing did."""
        return None

    def changes(self) -> dict[str, Any] | None:
        """Return the state of the rest, if it changed since the last call."""
        return None


@dataclass(eq=False)
class _Channel:
    """A feed with those who listen; a queue holds messages, None tells to connect again."""

    feed: Feed
    state: str = ""
    listeners: set[asyncio.Queue[Growth | str | None]] = field(
        default_factory=set[asyncio.Queue[Growth | str | None]]
    )
    task: asyncio.Task[None] | None = None
    #: Set once new items are told: a listener that then reads what it missed misses nothing.
    is_listening: asyncio.Event = field(default_factory=asyncio.Event)

    async def poll(self) -> None:
        """Tell the listeners what is new until cancelled."""
        position: int | None = None
        while True:
            try:
                if position is None:
                    position = await asyncio.to_thread(self.feed.end)
                    self.is_listening.set()
                grown = await asyncio.to_thread(self.feed.read, position)
                changed = await asyncio.to_thread(self.feed.changes)
            except (CadenzaError, OSError) as error:  # the store is away for a while, or for good
                _logger.info("live updates: %s", error)
                grown = changed = None
            if grown is not None:
                position = grown.end
                self._tell(grown)
            if changed is not None:
                self.state = f"event: state\ndata: {json.dumps(changed)}\n\n"
                self._tell(self.state)
            await asyncio.sleep(PAUSE_S)

    def send_all_away(self) -> None:
        """Tell all listeners to connect again."""
        for queue in self.listeners:
            _send_away(queue)

    def _tell(self, message: Growth | str) -> None:
        for queue in self.listeners:
            try:
                queue.put_nowait(message)
            except asyncio.QueueFull:
                _send_away(queue)


class Hub:
    """All feeds that somebody listens to."""

    def __init__(self) -> None:
        self._channels: dict[Hashable, _Channel] = {}

    @property
    def listeners(self) -> int:
        """Number of listeners."""
        return sum(len(channel.listeners) for channel in self._channels.values())

    def response(
        self, key: Hashable, make: Callable[[], Feed], *, position: int
    ) -> StreamingResponse:
        """Return an answer that stays open: items behind ``position``, and each new state."""
        if self.listeners >= MAX_LISTENERS:
            return StreamingResponse(iter(()), 503, {"retry-after": "30"}, "text/event-stream")
        messages = self._messages(key, make, position)
        return StreamingResponse(
            messages, headers={"x-accel-buffering": "no"}, media_type="text/event-stream"
        )

    async def _messages(
        self, key: Hashable, make: Callable[[], Feed], position: int
    ) -> AsyncGenerator[str]:
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = _Channel(make())
            channel.task = asyncio.create_task(channel.poll())
            channel.task.add_done_callback(lambda _: self._drop(key, channel))
        queue = asyncio.Queue[Growth | str | None](_WAITING)
        channel.listeners.add(queue)
        try:
            yield f"retry: 2000\n\n{channel.state}"
            await channel.is_listening.wait()
            for _ in range(_ROUNDS):
                try:
                    grown = await asyncio.to_thread(channel.feed.read, position)
                except (CadenzaError, OSError):
                    return  # the store is away; the browser connects again
                if grown is None:
                    break
                yield grown.after(position)
                position = grown.end
            until = time.monotonic() + _LASTS_S
            while time.monotonic() < until:
                try:
                    message = await asyncio.wait_for(queue.get(), _ALIVE_S)
                except TimeoutError:
                    yield ": alive\n\n"
                    continue
                if message is None or (isinstance(message, Growth) and message.start > position):
                    return  # it is behind: the browser connects again and is brought up to date
                if isinstance(message, str):
                    yield message
                elif message.end > position:
                    yield message.after(position)
                    position = message.end
        finally:
            channel.listeners.discard(queue)
            if not channel.listeners and channel.task is not None:
                self._drop(key, channel)
                channel.task.cancel()

    def close(self) -> None:
        """Send all listeners away."""
        for channel in self._channels.values():
            channel.send_all_away()

    def _drop(self, key: Hashable, channel: _Channel) -> None:
        """Forget a channel that nobody polls any more."""
        if self._channels.get(key) is channel:
            del self._channels[key]
        channel.is_listening.set()
        channel.send_all_away()


def _send_away(queue: asyncio.Queue[Growth | str | None]) -> None:
    """Tell a listener to connect again, instead of all that waits for it."""
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(None)
