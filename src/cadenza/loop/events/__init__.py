"""Events: what a run did, in order, for people and dashboards.

Start at:    `Event`; `EventJournal` for a run, `EventBus` for a log without a store.
Promise:     numbers without gaps or repeats; a line is whole or absent; log and store agree after
             a kill at any point; a subscriber that fails stops nobody.
"""

from cadenza.loop.events.bus import Event, EventBus, EventJournal

__all__ = ["Event", "EventBus", "EventJournal"]
