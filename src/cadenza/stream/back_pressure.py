"""Who has to wait for whom: producers for readers, and readers for fresh data.

A producer publishes an episode when its mode wants one and fewer than ``high_water`` episodes are
unread; otherwise it pauses with all its environments: what it stepped is never left out. A reader
draws when that keeps the replay ratio and the share of fresh episodes; otherwise it asks for a
fill, waits, and raises `StaleDataError` at last.

The two never wait for each other: while a draw waits, neither ``high_water`` nor the ratio of
``fixed_ratio`` holds producers back, up to what it waits for, or without a bound where nobody can
say how many episodes bring it. Episodes that draws pass over, see `SlotStore`, are neither unread
nor fresh.

A fill is B episodes. On demand one is asked for when enough chunks were drawn since the last, and
when readers of whole episodes are through with B of them; for the latter also with a fixed ratio.
``TO_FILL`` is the number of published episodes at which all fills are done; one is *waiting* while
more than B episodes are missing, so at most one can wait behind the one that runs.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError, StaleDataError, StorageError
from cadenza.stream.config import FlowRules
from cadenza.stream.slots import LARGEST, ProducerState, SlotStore, StreamWords, saturating_sum

#: Pause between two looks at the store, s.
POLL_S: Final = 0.002
#: Time for which a draw counts as waiting after its last sign of it, ns: one that gave up may try
#: again, one that was killed is forgotten.
WAITING_NS: Final = 1_000_000_000
#: States of producers that will write.
_AT_WORK: Final = (ProducerState.STARTING, ProducerState.RUNNING)


def passed_episodes(store: SlotStore) -> int:
    """Return the episodes that readers of whole ones are through with, all readers together."""
    return min(sum(store.consumers["passed"].tolist()), LARGEST)


def unread_episodes(store: SlotStore) -> int:
    """Return the readable episodes nothing was drawn from, without those that draws pass over."""
    return int(np.count_nonzero(_wanted(store) & (store.draws == 0)))


def readable_slots(store: SlotStore) -> NDArray[np.bool_]:
    """Return which slots hold an episode that is not being written."""
    return (store.length > 0) & (store.version & 1 == 0)


def _wanted(store: SlotStore) -> NDArray[np.bool_]:
    """Return which slots hold an episode that draws do not pass over."""
    return readable_slots(store) & ~store.passed_over()


def waiting_rows(store: SlotStore) -> NDArray[np.bool_]:
    """Return which rows of consumers have a draw that waits."""
    return store.consumers["waiting_ns"] > time.monotonic_ns() - WAITING_NS


def is_frozen(store: SlotStore) -> bool:
    """Return whether a draw waits while every producer that runs pauses."""
    states = store.producers["state"].copy()  # producers write while this looks
    pause = bool((states == ProducerState.PAUSED).any()) and not np.isin(states, _AT_WORK).any()
    return pause and bool(waiting_rows(store).any())


def is_first_fill_complete(store: SlotStore, rules: FlowRules) -> bool:
    """Return whether the buffer was full once."""
    return store.published() >= rules.buffer_size


def may_publish(store: SlotStore, rules: FlowRules, published: int) -> bool:
    """Return whether another episode may follow the ``published`` ones now."""
    words = store.words
    waited_for = _is_waited_for(store, rules, published)
    # The first fill must not wait for readers, who wait for it.
    if rules.high_water is not None and published >= rules.buffer_size and not waited_for:
        coming = published - store.published()  # first these, then the unread: none is left out
        if unread_episodes(store) + max(coming, 0) >= rules.high_water:
            return False
    if published < rules.buffer_size or published < int(words[StreamWords.TO_FILL]):
        return True
    if rules.mode == "continuous":
        return True
    if rules.mode == "on_demand" or rules.max_replay_ratio is None:
        return False
    if waited_for:
        return True
    wanted = int(words[StreamWords.FRAMES_AT_READY]) + store.drawn_chunks() / rules.max_replay_ratio
    return store.published_frames() < wanted


def _is_waited_for(store: SlotStore, rules: FlowRules, published: int) -> bool:
    """Return whether a draw waits for more than ``published`` episodes, or for more steps."""
    waiting = waiting_rows(store)
    if not waiting.any():
        return False
    chunks = store.consumers["wanted_chunks"]
    until = store.consumers["wanted_until"]
    if (waiting & (chunks == 0) & (published < until)).any():
        return True
    most = int(chunks[waiting].max())
    return most > 0 and _lacks_steps(store, rules, most)


def _lacks_steps(store: SlotStore, rules: FlowRules, chunks: int) -> bool:
    """Return whether the replay ratio wants more steps before ``chunks`` more are drawn."""
    if rules.max_replay_ratio is None:
        return False
    allowed = rules.max_replay_ratio * store.published_frames()
    return store.drawn_chunks() + chunks > allowed


def is_fill_running(store: SlotStore) -> bool:
    """Return whether episodes of a fill are missing."""
    return store.published() < int(store.words[StreamWords.TO_FILL])


def request_fill(store: SlotStore, rules: FlowRules) -> bool:
    """Ask for a fill unless one is waiting; return whether it was asked for."""
    with store.file.locked():
        return _request_fill(store, rules)


def _request_fill(store: SlotStore, rules: FlowRules) -> bool:
    words = store.words
    published = store.published()
    target = max(int(words[StreamWords.TO_FILL]), published)
    if target - published > rules.buffer_size:
        return False
    words[StreamWords.TO_FILL] = saturating_sum(target, rules.buffer_size)
    words[StreamWords.REQUESTS] = saturating_sum(int(words[StreamWords.REQUESTS]), 1)
    words[StreamWords.DRAWN_AT_REQUEST] = store.drawn_chunks()
    words[StreamWords.PASSED_AT_REQUEST] = passed_episodes(store)
    return True


def request_fill_unless_running(store: SlotStore, rules: FlowRules) -> bool:
    """Ask for a fill where draws get one on demand and none runs; return whether it was asked."""
    if rules.mode != "on_demand" or is_fill_running(store):
        return False
    with store.file.locked():  # another draw may have asked meanwhile
        return not is_fill_running(store) and _request_fill(store, rules)


def request_fill_if_due(store: SlotStore, rules: FlowRules) -> bool:
    """Ask for a fill when enough was drawn since the last one; return whether it was."""
    if rules.mode != "on_demand" or not _is_due(store, rules):
        return False
    with store.file.locked():  # another process may have asked meanwhile
        return _is_due(store, rules) and _request_fill(store, rules)


def _is_due(store: SlotStore, rules: FlowRules) -> bool:
    since = store.drawn_chunks() - int(store.words[StreamWords.DRAWN_AT_REQUEST])
    return since >= rules.refill_threshold * rules.buffer_size


def request_fill_if_passed(store: SlotStore, rules: FlowRules) -> bool:
    """Ask for a fill when the last one was read whole; return whether it was.

    It never waits: while somebody else has the lock it leaves that to the next call.

    A single reader so never has more than B episodes before it, and loses none where nothing else
    asks for episodes.
    """
    if rules.mode == "continuous" or not _is_passed(store, rules):
        return False
    with suppress(StorageError), store.file.locked(timeout=0.0):  # a draw may have asked meanwhile
        return _is_passed(store, rules) and _request_fill(store, rules)
    return False


def _is_passed(store: SlotStore, rules: FlowRules) -> bool:
    since = passed_episodes(store) - int(store.words[StreamWords.PASSED_AT_REQUEST])
    return since >= rules.buffer_size


def stale_reason(store: SlotStore, rules: FlowRules, chunks: int) -> str | None:
    """Return why ``chunks`` more may not be drawn now, None if they may."""
    if _lacks_steps(store, rules, chunks):
        return (
            f"at most {rules.max_replay_ratio:g} chunks per written step, got "
            f"{store.drawn_chunks()} + {chunks} chunks for "
            f"{store.published_frames()} steps"
        )
    if rules.min_fresh_fraction is not None:
        wanted = _wanted(store)
        readable = int(np.count_nonzero(wanted))
        fresh = int(np.count_nonzero(wanted & (store.draws == 0)))
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
    note: Callable[[int, int], None],
    look: Callable[[], None],
) -> None:
    """Wait until ``chunks`` may be drawn, at most ``timeout`` s.

    ``check`` raises when waiting is in vain. ``look`` finds out which new episodes the draw can
    use. ``note`` gets every piece of time waited, ns, as it passes, the first one empty, so that
    nothing is left out when the wait fails; it tells producers that a draw waits, and for how many
    chunks the replay ratio wants more steps, 0 while that is not what it waits for.

    Raises:
        InputError: Producers would never write enough for so many chunks.
        StaleDataError: The wait was too short.
    """
    if rules.max_replay_ratio is None and rules.min_fresh_fraction is None:
        return
    _require_possible(store, rules, chunks)
    reason = _stale_reason(store, rules, chunks, look)
    began = now = time.monotonic_ns()
    if reason is not None:
        note(0, chunks if _lacks_steps(store, rules, chunks) else 0)
    while reason is not None:
        request_fill_unless_running(store, rules)
        if now - began >= timeout * 1e9:
            raise StaleDataError(
                f"sample_batch: expected {reason}, after {(now - began) / 1e9:.1f} s; add "
                "producers, draw less often, or allow more with max_replay_ratio or "
                "min_fresh_fraction."
            )
        check()
        time.sleep(POLL_S)
        before, now = now, time.monotonic_ns()
        note(now - before, chunks if _lacks_steps(store, rules, chunks) else 0)
        reason = _stale_reason(store, rules, chunks, look)


def _stale_reason(
    store: SlotStore, rules: FlowRules, chunks: int, look: Callable[[], None]
) -> str | None:
    if rules.min_fresh_fraction is not None:
        look()
    return stale_reason(store, rules, chunks)


def _require_possible(store: SlotStore, rules: FlowRules, chunks: int) -> None:
    most = rules.most_chunks(store.layout.steps)
    if most is not None and chunks > most:
        raise InputError(
            f"sample_batch: expected batch_size <= {most:.0f}, because max_replay_ratio "
            f"= {rules.max_replay_ratio:g} allows no more chunks for the {rules.buffer_size} "
            f"episodes of {store.layout.steps} steps that the buffer holds, got {chunks}; draw "
            "smaller batches, or raise max_replay_ratio or buffer_size."
        )
