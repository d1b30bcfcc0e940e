"""How workers of loaders end: what they send arrives, and nobody waits long for what does not."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from cadenza.stream.dataset import OnlineDataset
from tests.campaigns import nightly
from tests.fakes import FakeChunkSource

#: Bytes of a batch that takes a while to be shared.
LARGE = 2**27


def grow(batch: TensorDict) -> TensorDict:
    """Make every batch but the first of an iterator large."""
    first = grow.__dict__.setdefault("first", True)
    vars(grow)["first"] = False
    return batch if first else batch.set("large", torch.zeros(*batch.shape, LARGE // 32))


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=nightly)])
def test_worker_ends_in_silence_while_a_large_batch_is_on_its_way(
    start: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine that others keep busy is no reason for the loader to kill its worker.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 90.0)
    loader = DataLoader(
        OnlineDataset(FakeChunkSource(), 4, 2, grow),
        batch_size=None,
        num_workers=1,
        multiprocessing_context=start,
        collate_fn=OnlineDataset.passthrough_collate_fn,
    )
    batches: Any = iter(loader)
    next(batches)
    (worker,) = batches._workers
    del batches  # the worker shares its next batch now
    assert worker.exitcode == 0
    assert capfd.readouterr().err == ""
