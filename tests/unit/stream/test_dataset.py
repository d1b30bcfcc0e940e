"""The endless dataset: shapes, options, random streams of iterators and refused arguments."""

import itertools
import multiprocessing

import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from cadenza.core.errors import (
    ConfigurationError,
    InputError,
    StaleDataError,
    UnknownNameError,
)
from cadenza.stream.chunk_samplers import ChunkSizeSampler, GMMChunkSampler, UniformChunkSampler
from cadenza.stream.dataset import OnlineDataset
from tests.fakes import FakeChunkSource


def take(iterable, count: int) -> list[TensorDict]:
    return list(itertools.islice(iterable, count))


def starts(batches: list[TensorDict]) -> list[int]:
    """Return the first step of every chunk."""
    return [int(x) for batch in batches for x in batch["step"].reshape(-1, batch.shape[-1])[:, 0]]


def test_item_mode_yields_single_chunks() -> None:
    chunks = take(OnlineDataset(FakeChunkSource(), 4), 3)
    assert [chunk.batch_size for chunk in chunks] == [torch.Size([4])] * 3
    assert (chunks[0]["step"].diff() == 1).all()
    assert len(set(starts(chunks))) == 3


def test_item_mode_draws_more_and_more_chunks_at_once() -> None:
    source = FakeChunkSource()
    chunks = take(OnlineDataset(source, 4), 128)
    assert [call["batch_size"] for call in source.calls] == [1, 2, 4, 8, 16, 32, 64, 64]
    assert len(set(starts(chunks))) == 128
    large, chunk_bytes = FakeChunkSource(2**17), 2**17 * (8 + 3 * 8 + 1)
    take(OnlineDataset(large, 2**17), 12)
    assert max(call["batch_size"] for call in large.calls) == 2**24 // chunk_bytes


@pytest.mark.parametrize(("in_batches", "of_loader"), [(3, None), (None, 3)])
def test_loader_needs_no_function_that_collates(in_batches, of_loader) -> None:
    def first(**given) -> TensorDict:
        dataset = OnlineDataset(FakeChunkSource(), 4, in_batches, seed=1)
        return next(iter(DataLoader(dataset, batch_size=of_loader, **given)))

    own = OnlineDataset.passthrough_collate_fn if in_batches else OnlineDataset.collate_fn
    batch, expected = first(), first(collate_fn=own)
    assert batch.batch_size == torch.Size([3, 4])
    assert set(batch.keys()) == {"step", "obs"}
    assert torch.equal(batch["obs"], expected["obs"])


def test_ranks_of_a_training_draw_differently_and_a_single_process_as_ever(monkeypatch) -> None:
    def drawn(seed: int | None) -> tuple[list[int], list[int]]:
        dataset = OnlineDataset(FakeChunkSource(), UniformChunkSampler(2, 40), 3, seed=seed)
        batches = take(dataset, 20)
        return starts(batches), [batch.shape[1] for batch in batches]

    alone = drawn(3), drawn(None)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert (drawn(3), drawn(None)) == alone
    monkeypatch.setenv("WORLD_SIZE", "2")
    first = drawn(3), drawn(None)
    monkeypatch.setenv("RANK", "1")
    for mine, *others in zip((drawn(3), drawn(None)), first, alone, strict=True):
        assert all(mine[0] != other[0] and mine[1] != other[1] for other in others)
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(ConfigurationError, match="numbers in the variables RANK and WORLD_SIZE"):
        drawn(3)


def test_every_option_reaches_the_engine() -> None:
    source = FakeChunkSource()
    options = {
        "sampling_mode": "segment",
        "weighting": "episode",
        "short": "pad",
        "stratified": True,
        "success": True,
        "select": ["step"],
    }
    batch = take(OnlineDataset(source, 4, 2, **options), 1)[0]
    assert source.calls == [{"batch_size": 2, "chunk_size": 4, **options}]
    assert list(batch.keys()) == ["step"]


def test_transform_replaces_what_is_yielded() -> None:
    doubled = OnlineDataset(FakeChunkSource(), 4, 2, lambda td: td.apply(lambda x: 2 * x), seed=3)
    plain = OnlineDataset(FakeChunkSource(), 4, 2, seed=3)
    assert torch.equal(take(doubled, 1)[0]["step"], 2 * take(plain, 1)[0]["step"])


def test_batch_mode_draws_a_size_for_every_batch() -> None:
    dataset = OnlineDataset(FakeChunkSource(), UniformChunkSampler(2, 40), batch_size=3)
    sizes = [batch.shape[1] for batch in take(dataset, 30)]
    assert len(set(sizes)) > 5
    assert {batch.shape[0] for batch in take(dataset, 5)} == {3}


def test_item_mode_keeps_one_size_per_iterator() -> None:
    dataset = OnlineDataset(FakeChunkSource(), UniformChunkSampler(2, 40))
    sizes = [{chunk.shape[0] for chunk in take(dataset, 20)} for _ in range(12)]
    assert all(len(size) == 1 for size in sizes)
    assert len(set.union(*sizes)) > 3


@pytest.mark.parametrize("batch_size", [None, 2])
def test_sizes_are_drawn_again_after_the_asked_number_of_yields(batch_size) -> None:
    sampler = UniformChunkSampler(2, 40)
    dataset = OnlineDataset(FakeChunkSource(), sampler, batch_size, resample_every=5)
    sizes = [chunk.shape[-1] for chunk in take(dataset, 40)]
    runs = [set(sizes[i : i + 5]) for i in range(0, 40, 5)]
    assert all(len(run) == 1 for run in runs)
    assert len(set.union(*runs)) > 3


def test_equal_seeds_give_equal_draws_and_epochs_differ() -> None:
    first, again, other = (OnlineDataset(FakeChunkSource(), 4, seed=s) for s in (1, 1, 2))
    epochs = [starts(take(first, 5)), starts(take(first, 5))]
    assert [starts(take(again, 5)), starts(take(again, 5))] == epochs
    assert not set(epochs[0]) & set(epochs[1])
    assert not set(starts(take(other, 5))) & set(epochs[0])


def test_datasets_without_a_seed_draw_each_their_own_and_alike_in_every_run() -> None:
    def run() -> list[list[int]]:
        source, size = FakeChunkSource(), UniformChunkSampler(2, 40)
        datasets = [OnlineDataset(source, size, 1) for _ in range(3)]
        return [
            [number for b in take(d, 8) for number in (b.shape[1], int(b["step"][0, 0]))]
            for d in datasets
        ]

    first = run()
    assert run() == first
    assert len({tuple(draws[::2]) for draws in first}) == 3  # sizes
    assert len({tuple(draws[1::2]) for draws in first}) == 3  # places


def test_equal_seeds_draw_alike_whatever_datasets_were_made_before() -> None:
    source = FakeChunkSource()
    first, other, again = (OnlineDataset(source, 4, seed=seed) for seed in (7, None, 7))
    drawn = [starts(take(dataset, 5)) for dataset in (first, other, again)]
    assert drawn[0] == drawn[2] != drawn[1]


def test_seed_of_the_sampler_fixes_its_sizes_whatever_the_seed_of_the_dataset() -> None:
    def sizes(sampler: ChunkSizeSampler, seed: int) -> list[int]:
        dataset = OnlineDataset(FakeChunkSource(), sampler, 1, seed=seed)
        return [batch.shape[1] for batch in take(dataset, 20)]

    fixed = [sizes(UniformChunkSampler(1, 50, seed=5), seed) for seed in (1, 2)]
    free = [sizes(UniformChunkSampler(1, 50), seed) for seed in (1, 2)]
    assert fixed[0] == fixed[1]
    assert free[0] != free[1]


def test_mixture_without_upper_bound_is_cut_at_the_longest_episode() -> None:
    dataset = OnlineDataset(FakeChunkSource(12), GMMChunkSampler([30.0], [1.0]), batch_size=1)
    assert take(dataset, 1)[0].shape == (1, 12)


def test_epochs_of_loader_workers_are_counted_however_workers_start() -> None:
    def epochs(context: str) -> list[list[int]]:
        dataset = OnlineDataset(FakeChunkSource(), UniformChunkSampler(3, 9), 2, seed=4)
        loader = DataLoader(
            dataset,
            batch_size=None,
            num_workers=2,
            multiprocessing_context=context,
            collate_fn=OnlineDataset.passthrough_collate_fn,
        )
        return [starts(take(loader, 4)) for _ in range(2)]

    # What the server imports its workers need not; producers of later tests come from it as well.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["cadenza.stream.producer", "tensordict", "tests.fakes"])
    first = epochs("fork")
    assert len(set(first[0] + first[1])) == 16  # two chunks in each of eight batches
    assert epochs("forkserver") == first


def test_collation_stacks_along_a_new_first_axis() -> None:
    chunks = take(OnlineDataset(FakeChunkSource(), 4), 2)
    batch = OnlineDataset.collate_fn(chunks)
    assert batch.batch_size == torch.Size([2, 4])
    assert torch.equal(batch["obs"][1], chunks[1]["obs"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chunk_size": 0}, "chunk_size: expected 1 to 50"),
        ({"chunk_size": 51}, "chunk_size: expected 1 to 50 .*got 51"),
        ({"chunk_size": UniformChunkSampler(1, 51)}, "high: expected at most 50"),
        ({"resample_every": 2}, "resample_every: expected a ChunkSizeSampler"),
        ({"stratified": True}, "stratified: expected batch mode"),
        ({"sampling_mode": "boundary", "chunk_size": 1}, "expected chunks of at least 2 steps"),
    ],
)
def test_values_that_do_not_fit_are_refused(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OnlineDataset(FakeChunkSource(), **{"chunk_size": 4, **arguments})


@pytest.mark.parametrize(
    ("select", "kind", "message"),
    [
        (["steps"], UnknownNameError, r"expected keys among \[.*'step'.*\], got 'steps'"),
        (["step", "ob"], UnknownNameError, "got 'ob'"),
        ([("obs", "qpos")], InputError, r"select: expected a list of names, .*\['obs.state'\] for"),
        ([], InputError, "select: expected at least one key, got none; leave it out"),
    ],
)
def test_keys_that_the_stream_lacks_are_refused_when_described(select, kind, message) -> None:
    with pytest.raises(kind, match=message):
        OnlineDataset(FakeChunkSource(), 4, select=select)


@pytest.mark.parametrize("size", [0, 51, True, 2.0])
def test_sampler_that_returns_no_possible_size_is_named(size) -> None:
    class Odd(ChunkSizeSampler):
        def __call__(self) -> int:
            return size

    with pytest.raises(InputError, match=r"integer in \[1, 50\], got .*; correct Odd"):
        next(iter(OnlineDataset(FakeChunkSource(), Odd())))


def test_worker_gives_up_after_the_wait_that_the_engine_allows() -> None:
    source = FakeChunkSource()
    source.wait_s, source.draw_timeout = 60.0, 0.6
    dataset = OnlineDataset(source, 4, 2)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, collate_fn=lambda batch: batch)
    with pytest.raises(StaleDataError, match=r"The loader worker waited 0\.6 s"):
        next(iter(loader))
    with pytest.raises(StaleDataError, match=r"within 0\.6 s"):
        next(iter(dataset))
