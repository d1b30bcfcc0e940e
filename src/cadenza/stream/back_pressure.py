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
In a fill, and in the first one, environments take turns, those of all producers: the first B
episodes to end would be the short ones, and those of the first producer. An environment that is
ahead waits at the beginning of its next episode.
All fills are done at ``to_fill`` published episodes; one is *waiting* while more than B are
missing, so at most one can wait behind the one that runs.

Whoever asks for a fill writes so into its own row, without a lock, and the largest numbers of all
rows count: two that ask because of the same draws write the same number, and what one that was
stopped in the middle writes when it goes on is out of date and changes nothing.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError, StaleDataError
from cadenza.stream.config import FlowRules
from cadenza.stream.layout import OWNER_ROW
from cadenza.stream.shared_file import full_fence
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


def may_publish(
    store: SlotStore, rules: FlowRules, published: int, turn: tuple[int, int] | None = None
) -> bool:
    """Return whether another episode may follow the ``published`` ones now.

    ``turn`` names its producer and how many of that producer's environments come before; None, for
    the parts of a long episode, waits for no turn.
    """
    waited_for = _is_waited_for(store, rules, published)
    # The first fill must not wait for readers, who wait for it.
    if rules.high_water is not None and published >= rules.buffer_size and not waited_for:
        coming = published - store.published()  # first these, then the unread: none is left out
        if unread_episodes(store) + max(coming, 0) >= rules.high_water:
            return False
    missing = max(rules.buffer_size, fills_asked(store).to_fill) - published
    if missing > 0 and (turn is None or _is_in_turn(store, rules, *turn, missing)):
        return True
    if published < rules.buffer_size:
        return False
    if rules.mode == "continuous":
        return True
    if rules.mode == "on_demand" or rules.max_replay_ratio is None:
        return False
    if waited_for:
        return True
    wanted = (
        int(store.words[StreamWords.FRAMES_AT_READY])
        + store.drawn_chunks() / rules.max_replay_ratio
    )
    return store.published_frames() < wanted


def _is_in_turn(
    store: SlotStore, rules: FlowRules, producer: int, before: int, missing: int
) -> bool:
    """Return whether an episode is among the ``missing`` ones of a fill when all take turns.

    The next turns of all producers come by round, then by number; in each, ``before`` environments
    of the same producer come first. Whoever is down for a while does not keep the others waiting,
    and catches up with no more than its share of one fill.
    """
    table, producers = store.producers, np.arange(store.layout.producers)
    state, restarts = table["state"], table["restarts"]
    takes_part = (state == ProducerState.RUNNING) | (state == ProducerState.PAUSED)
    takes_part |= (state == ProducerState.STARTING) & (restarts == 0)
    takes_part[producer] = False  # its own are counted already
    turns: NDArray[np.int64] = table["turns"].copy()
    share = -(-rules.buffer_size // store.layout.producers)
    np.maximum(turns, turns.max() - share, out=turns)
    ahead = turns[producer] + before - turns + (producers < producer)
    return before + int(np.maximum(ahead, 0)[takes_part].sum()) < missing


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


class FillsAsked(NamedTuple):
    """Fills that were asked for, and what had been drawn and read whole at the last request."""

    to_fill: int
    requests: int
    drawn_at: int
    passed_at: int


def fills_asked(store: SlotStore) -> FillsAsked:
    """Return what all rows together say."""
    columns = [store.consumers[name] for name in FillsAsked._fields]
    to_fill, requests = int(columns[0].max()), int(columns[1].max())
    full_fence()  # first what was asked for, then since when: a request is never counted twice
    return FillsAsked(to_fill, requests, int(columns[2].max()), int(columns[3].max()))


def request_fill(store: SlotStore, rules: FlowRules, row: int = OWNER_ROW) -> bool:
    """Ask for a fill, in ``row``, unless one is waiting; return whether it was asked for."""
    return _request_fill(store, rules, row, lambda _: True)


def request_fill_unless_running(store: SlotStore, rules: FlowRules, row: int = OWNER_ROW) -> bool:
    """Ask for a fill where draws get one on demand and none runs; return whether it was asked."""
    return rules.mode == "on_demand" and _request_fill(
        store, rules, row, lambda asked: store.published() >= asked.to_fill
    )


def request_fill_if_due(store: SlotStore, rules: FlowRules, row: int = OWNER_ROW) -> bool:
    """Ask for a fill when enough was drawn since the last one; return whether it was."""

    def is_due(asked_at: int) -> bool:
        return store.drawn_chunks() - asked_at >= rules.refill_threshold * rules.buffer_size

    if rules.mode != "on_demand" or not is_due(int(store.consumers["drawn_at"].max())):
        return False
    return _request_fill(store, rules, row, lambda asked: is_due(asked.drawn_at))


def request_fill_if_passed(store: SlotStore, rules: FlowRules, row: int = OWNER_ROW) -> bool:
    """Ask for a fill when the last one was read whole; return whether it was.

    A single reader so never has more than B episodes before it, and loses none where nothing else
    asks for episodes.
    """
    return rules.mode != "continuous" and _request_fill(
        store,
        rules,
        row,
        lambda asked: passed_episodes(store) - asked.passed_at >= rules.buffer_size,
    )


def _request_fill(
    store: SlotStore, rules: FlowRules, row: int, is_wanted: Callable[[FillsAsked], bool]
) -> bool:
    """Ask for a fill if it ``is_wanted`` after those that were asked for, and none is waiting."""
    with store.counting.here():  # threads share a row
        asked, published = fills_asked(store), store.published()
        target = max(asked.to_fill, published)
        if not is_wanted(asked) or target - published > rules.buffer_size:
            return False
        table = store.consumers
        table["drawn_at"][row] = store.drawn_chunks()
        table["passed_at"][row] = passed_episodes(store)
        full_fence()
        table["to_fill"][row] = saturating_sum(target, rules.buffer_size)
        table["requests"][row] = saturating_sum(asked.requests, 1)
        return True


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
    row: int = OWNER_ROW,
    timeout: float,
    check: Callable[[], None],
    note: Callable[[int, int], None],
    look: Callable[[], None],
) -> None:
    """Wait until ``chunks`` may be drawn, at most ``timeout`` s; ask for fills in ``row``.

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
        request_fill_unless_running(store, rules, row)
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
