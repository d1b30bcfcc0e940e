"""Invariants of the store under any order of writing, dropping and drawing."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cadenza.core.errors import NotReadyError
from cadenza.stream.batches import allocate_chunks, chunk_fields
from cadenza.stream.counters import (
    TIME_EDGES_NS,
    lag_classes,
    lag_quantile,
    time_classes,
    time_quantile_ns,
)
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.layout import BOOKKEEPING, Field, StoreLayout
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import SlotStore
from cadenza.stream.windows import DrawnChunks, WindowTable

STEPS = 6
LAYOUT = StoreLayout(
    slots=4,
    steps=STEPS,
    producers=2,
    fields=(
        Field(name="obs", shape=(), dtype="int64", kind="state"),
        Field(name="stamp", shape=(), dtype="int64"),
        *BOOKKEEPING,
    ),
)
KEYS = ("obs", "next.obs", "stamp", "segment_id", "valid", "episode_step")
options = st.one_of(
    st.builds(
        DrawOptions,
        sampling_mode=st.sampled_from(["episode", "segment"]),
        weighting=st.sampled_from(["episode", "window", "step"]),
        short=st.sampled_from(["exclude", "pad"]),
    ),
    st.builds(
        DrawOptions,
        sampling_mode=st.just("boundary"),
        weighting=st.sampled_from(["episode", "window"]),
        short=st.sampled_from(["exclude", "pad"]),
    ),
    st.builds(
        DrawOptions,
        sampling_mode=st.sampled_from(["episode", "segment", "boundary"]),
        short=st.sampled_from(["exclude", "pad"]),
        stratified=st.just(True),
    ),
)
ids = st.lists(st.integers(-1, 2), min_size=1, max_size=STEPS)


def add_steps(writer: EpisodeWriter, stamp: int, segments: Sequence[int]) -> None:
    """Step t of episode ``stamp`` holds ``100 * stamp + t``."""
    writer.start({"obs": 100 * stamp})
    for t, segment in enumerate(segments):
        step = {
            "stamp": 100 * stamp + t,
            "rewards": 0.0,
            "terminated": False,
            "truncated": False,
            "segment_id": segment,
        }
        writer.add(step, {"obs": 100 * stamp + t + 1})


class Stream(RuleBasedStateMachine):
    """Writers that start, publish and drop in any order, and a reader that must stay right."""

    @initialize()
    def start(self) -> None:
        self.store = SlotStore.create(LAYOUT)
        self.reader = SlotReader(self.store)
        self.generator = torch.Generator().manual_seed(0)
        self.writing: list[tuple[EpisodeWriter, list[int], int]] = []
        self.published: dict[int, tuple[list[int], int]] = {}
        self.stamp = 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.writing.clear()
            self.store.close()

    @precondition(lambda self: len(self.writing) < LAYOUT.slots)
    @rule(segments=ids, producer=st.integers(0, 1), reuse=st.sampled_from(["oldest", "most_drawn"]))
    def write(self, segments: list[int], producer: int, reuse: str) -> None:
        writer = EpisodeWriter(self.store, self.store.take_slot(producer, reuse=reuse))  # type: ignore[arg-type]
        self.published.pop(writer.slot, None)
        self.stamp += 1
        add_steps(writer, self.stamp, segments)
        self.writing.append((writer, segments, producer))

    @precondition(lambda self: self.writing)
    @rule()
    def publish(self) -> None:
        writer, segments, _ = self.writing.pop()
        writer.publish()
        stamp = int(self.store.entries("stamp", writer.slot)[0]) // 100
        self.published[writer.slot] = (segments, stamp)

    @precondition(lambda self: self.writing)
    @rule()
    def drop(self) -> None:
        self.writing.pop(0)[0].drop()

    @rule(producer=st.integers(0, 1))
    def producer_dies(self, producer: int) -> None:
        self.store.drop_leases(producer)
        self.writing = [entry for entry in self.writing if entry[2] != producer]

    @rule(c=st.integers(1, STEPS), options=options)
    def draw(self, c: int, options: DrawOptions) -> None:
        if options.sampling_mode == "boundary":
            c = max(c, 2)
        out = allocate_chunks(chunk_fields(LAYOUT, KEYS), 12, c)
        try:
            drawn = self.reader.draw(12, c, out, self.generator, options)
        except NotReadyError:
            assert not any(has_window(s, c, options) for s, _ in self.published.values())
            return
        self.check(drawn, {name: values.numpy() for name, values in out.items()}, c, options)

    def check(
        self, drawn: DrawnChunks, out: dict[str, np.ndarray], c: int, options: DrawOptions
    ) -> None:
        """Every chunk is a window of a published episode that the options allow."""
        for row, slot in enumerate(drawn.slots.tolist()):
            segments, stamp = self.published[slot]
            begin, end = drawn.bounds[row].tolist()
            steps = drawn.offsets[row] + np.arange(c)
            valid = (steps >= begin) & (steps < end)
            shown = np.clip(steps, begin, end - 1)
            assert valid.any()
            assert 0 <= begin < end <= len(segments)
            np.testing.assert_array_equal(out["stamp"][row], 100 * stamp + shown)
            np.testing.assert_array_equal(out["obs"][row], 100 * stamp + shown)
            np.testing.assert_array_equal(out["next.obs"][row], 100 * stamp + shown + 1)
            np.testing.assert_array_equal(out["valid"][row], valid)
            np.testing.assert_array_equal(out["episode_step"][row], np.where(valid, steps, -1))
            inside = {segments[t] for t in steps[valid]}
            if options.sampling_mode == "segment":
                assert len(inside) == 1
                assert -1 not in inside
            if options.sampling_mode == "boundary":
                assert len(inside) > 1
            if not options.may_mask:
                assert valid.all()

    @invariant()
    def versions_tell_who_may_be_read(self) -> None:
        if not hasattr(self, "store"):
            return
        odd = set(np.flatnonzero(self.store.version & 1).tolist())
        leased = set(np.flatnonzero(self.store.lease).tolist())
        assert odd == leased == {entry[0].slot for entry in self.writing}
        assert set(np.flatnonzero(self.store.length).tolist()) == set(self.published)
        numbers = self.store.number[list(self.published)]
        assert len(set(numbers.tolist())) == len(self.published) <= self.store.published()
        assert (numbers < self.store.published() * LAYOUT.producers).all()


def has_window(segments: Sequence[int], c: int, options: DrawOptions) -> bool:
    """Say from the definition whether an episode has a window."""
    length = len(segments)
    if options.sampling_mode == "boundary":
        if options.short == "pad" and length < c:
            return len(set(segments)) > 1
        return any(len(set(segments[o : o + c])) > 1 for o in range(length - c + 1))
    if options.sampling_mode == "segment":
        runs = runs_of(segments)
        return any(options.short == "pad" or after - first >= c for first, after in runs)
    return options.short == "pad" or length >= c


def runs_of(segments: Sequence[int]) -> list[tuple[int, int]]:
    """Return first step and step after the last of every run of equal ids >= 0."""
    edges = [t for t in range(1, len(segments)) if segments[t] != segments[t - 1]]
    starts = [0, *edges]
    ends = [*edges, len(segments)]
    return [(a, b) for a, b in zip(starts, ends, strict=True) if segments[a] >= 0]


TestStream = Stream.TestCase
TestStream.settings = settings(max_examples=40, stateful_step_count=25)


@given(rows=st.lists(ids, min_size=1, max_size=4), c=st.integers(2, STEPS), options=options)
def test_table_refreshed_step_by_step_equals_a_fresh_one(
    rows: list[list[int]], c: int, options: DrawOptions
) -> None:
    store = SlotStore.create(LAYOUT)
    kept = WindowTable(store, c, options)
    for stamp, segments in enumerate(rows):
        writer = EpisodeWriter(store, store.take_slot(0))
        kept.refresh()
        add_steps(writer, stamp, segments)
        writer.publish()
        kept.refresh()
    fresh = WindowTable(store, c, options)
    fresh.refresh()
    for name, values in vars(fresh).items():
        if isinstance(values, np.ndarray):
            np.testing.assert_array_equal(vars(kept)[name], values, err_msg=name)
    assert kept.too_short == fresh.too_short


@given(values=st.lists(st.integers(0, 10**15), min_size=1), q=st.floats(0.01, 1.0))
def test_quantiles_are_near_a_value_that_was_counted(values: list[int], q: float) -> None:
    array = np.array(values)
    found = time_quantile_ns(time_classes(array), q)
    lowest, highest = TIME_EDGES_NS[0], TIME_EDGES_NS[-1]
    true = np.clip(np.quantile(array, q, method="inverted_cdf"), lowest, highest)
    assert true / 1.42 <= found <= true * 1.42


@given(lags=st.lists(st.integers(0, 15) | st.integers(0, 65536), min_size=1), q=st.floats(0.01, 1))
def test_quantiles_of_small_lags_are_exact_and_of_others_near(lags: list[int], q: float) -> None:
    true = np.quantile(np.array(lags), q, method="inverted_cdf")
    found = lag_quantile(lag_classes(np.array(lags)), q)
    assert found == true if true < 16 else true / 1.2 <= found <= true * 1.2
