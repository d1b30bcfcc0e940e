"""Who has to wait for whom: producers for readers, and readers for fresh data.

A producer begins an episode when its mode wants one and fewer than ``high_water`` episodes are
unread. A reader draws when that keeps the replay ratio and the share of fresh episodes; otherwise
it asks for a fill, waits, and raises `StaleDataError` at last.

On demand, a fill is asked for when enough chunks were drawn since the last one, and when readers of
whole episodes are through with B of them. A fill is B episodes. ``TO_FILL`` is the number of
published episodes at which all fills that were asked for are done; a fill is *waiting* while more
than B episodes are missing, so at most one can wait behind the one that runs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np

from cadenza.core.errors import StaleDataError
from cadenza.stream.config import Mode, OnlineDataEngineCfg
from cadenza.stream.engine_state import LARGEST, EngineWords, saturating_sum
from cadenza.stream.slots import SlotStore, StreamWords

#: Pause between two looks at the store, s.
POLL_S: Final = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRules:
    """The settings that decide who waits, see `OnlineDataEngineCfg`."""

    buffer_size: int
    mode: Mode
    refill_threshold: int
    max_replay_ratio: float | None
    min_fresh_fraction: float | None
    high_water: int | None

    @classmethod
    def of(cls, cfg: OnlineDataEngineCfg) -> Self:
        """Return the rules of a configuration."""
        return cls(**{entry.name: getattr(cfg, entry.name) for entry in fields(cls)})

    def is_over_high_water(self, unread: int) -> bool:
        """Return whether producers pause with so many unread episodes."""
        return self.high_water is not None and unread >= self.high_water


def drawn_chunks(store: SlotStore) -> int:
    """Return the chunks that all processes have drawn, at most the largest 64-bit number."""
    return min(sum(store.consumers["chunks"].tolist()), LARGEST)  # Python's do not overflow


def passed_episodes(store: SlotStore) -> int:
    """Return the episodes that readers of whole ones are through with, all readers together."""
    return min(sum(store.consumers["passed"].tolist()), LARGEST)


def unread_episodes(store: SlotStore) -> int:
    """Return the readable episodes nothing was drawn from."""
    return int(np.count_nonzero((store.length > 0) & (store.draws == 0)))


def is_first_fill_complete(store: SlotStore, rules: FlowRules) -> bool:
    """Return whether the buffer was full once."""
    return int(store.words[StreamWords.PUBLISHED]) >= rules.buffer_size


def may_begin_episode(store: SlotStore, rules: FlowRules) -> bool:
    """Return whether a producer may begin an episode now."""
    words = store.words
    # The first fill must not wait for readers, who wait for it.
    if is_first_fill_complete(store, rules) and rules.is_over_high_water(unread_episodes(store)):
        return False
    begun = int(words[StreamWords.PUBLISHED]) + int(np.count_nonzero(store.lease))
    if begun < rules.buffer_size or begun < int(words[StreamWords.TO_FILL]):
        return True
    if rules.mode == "continuous":
        return True
    if rules.mode == "on_demand" or rules.max_replay_ratio is None:
        return False
    wanted = int(words[EngineWords.FRAMES_AT_READY]) + drawn_chunks(store) / rules.max_replay_ratio
    return int(words[StreamWords.PUBLISHED_FRAMES]) < wanted


def is_fill_running(store: SlotStore) -> bool:
    """Return whether episodes of a fill are missing."""
    return int(store.words[StreamWords.PUBLISHED]) < int(store.words[StreamWords.TO_FILL])


def request_fill(store: SlotStore, rules: FlowRules) -> bool:
    """Ask for a fill unless one is waiting; return whether it was asked for."""
    with store.file.locked():
        return _request_fill(store, rules)


def _request_fill(store: SlotStore, rules: FlowRules) -> bool:
    words = store.words
    published = int(words[StreamWords.PUBLISHED])
    target = max(int(words[StreamWords.TO_FILL]), published)
    if target - published > rules.buffer_size:
        return False
    words[StreamWords.TO_FILL] = saturating_sum(target, rules.buffer_size)
    words[StreamWords.REQUESTS] = saturating_sum(int(words[StreamWords.REQUESTS]), 1)
    words[StreamWords.DRAWN_AT_REQUEST] = drawn_chunks(store)
    words[EngineWords.PASSED_AT_REQUEST] = passed_episodes(store)
    return True


def request_fill_if_due(store: SlotStore, rules: FlowRules) -> bool:
    """Ask for a fill when enough was drawn since the last one; return whether it was."""
    if rules.mode != "on_demand" or not _is_due(store, rules):
        return False
    with store.file.locked():  # another process may have asked meanwhile
        return _is_due(store, rules) and _request_fill(store, rules)


def _is_due(store: SlotStore, rules: FlowRules) -> bool:
    since = drawn_chunks(store) - int(store.words[StreamWords.DRAWN_AT_REQUEST])
    return since >= rules.refill_threshold * rules.buffer_size


def request_fill_if_passed(store: SlotStore, rules: FlowRules) -> bool:
    """Ask for a fill when the last one was read whole; return whether it was.

    A single reader so never has more than B episodes before it, and loses none.
    """
    if rules.mode != "on_demand":
        return False
    since = passed_episodes(store) - int(store.words[EngineWords.PASSED_AT_REQUEST])
    return since >= rules.buffer_size and request_fill(store, rules)


def stale_reason(store: SlotStore, rules: FlowRules, chunks: int) -> str | None:
    """Return why ``chunks`` more may not be drawn now, None if they may."""
    if rules.max_replay_ratio is not None:
        frames = int(store.words[StreamWords.PUBLISHED_FRAMES])
        allowed = rules.max_replay_ratio * frames
        drawn = drawn_chunks(store)
        if drawn + chunks > allowed:
            return (
                f"at most {rules.max_replay_ratio:g} chunks per written step, got {drawn} + "
                f"{chunks} chunks for {frames} steps"
            )
    if rules.min_fresh_fraction is not None:
        readable = int(np.count_nonzero(store.length))
        fresh = unread_episodes(store)
        if fresh < rules.min_fresh_fraction * readable:
            return (
                f"a share of {rules.min_fresh_fraction:g} of the episodes unread, got {fresh} of "
                f"{readable}"
            )
    return None


def wait_until_fresh(
    store: SlotStore,
    rules: FlowRules,
    chunks: int,
    *,
    timeout: float,
    check: Callable[[], None],
    note: Callable[[int], None],
) -> None:
    """Wait until ``chunks`` may be drawn.

    Args:
        store: The store.
        rules: What to keep.
        chunks: Chunks of the draw.
        timeout: Longest wait, s.
        check: Called while waiting; raises when waiting is in vain.
        note: Called with every piece of time waited, ns, as it passes: nothing is left out when
            the wait fails, or the process is killed in it.

    Raises:
        StaleDataError: The wait was too short.
    """
    reason = stale_reason(store, rules, chunks)
    began = now = time.monotonic_ns()
    while reason is not None:
        if rules.mode == "on_demand" and not is_fill_running(store):
            request_fill(store, rules)
        if now - began >= timeout * 1e9:
            raise StaleDataError(
                f"sample_batch: expected {reason}, after {(now - began) / 1e9:.1f} s; add "
                "producers, draw less often, or allow more with max_replay_ratio or "
                "min_fresh_fraction."
            )
        check()
        time.sleep(POLL_S)
        before, now = now, time.monotonic_ns()
        note(now - before)
        reason = stale_reason(store, rules, chunks)
