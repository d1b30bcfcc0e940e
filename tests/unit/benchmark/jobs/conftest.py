"""A small expert dataset and a policy cloned from it, made once."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from cadenza.benchmark.jobs.cloning import Training, train
from cadenza.benchmark.jobs.collecting import Collection, collect


@pytest.fixture(scope="session")
def expert_data(tmp_path_factory):
    """Four expert episodes: folder of the dataset and the result of the job."""
    root = tmp_path_factory.mktemp("expert")
    result = collect(
        Collection(
            task="crossing",
            partners=("leaving_way",),
            episodes=4,
            seed_start=10,
            seed_count=20,
            repo_id="local/expert",
            out=root / "job",
            result=root / "result.json",
        )
    )
    return SimpleNamespace(root=root / "job" / "dataset", result=result)


@pytest.fixture(scope="session")
def clone(expert_data, tmp_path_factory):
    """A policy after 60 updates: path and the result of the job."""
    root = tmp_path_factory.mktemp("clone")
    result = train(
        Training(
            rung="bc",
            dataset=expert_data.root,
            steps=60,
            batch_size=64,
            seed=1,
            out=root / "job",
            result=root / "result.json",
        )
    )
    return SimpleNamespace(path=Path(root / "job" / "policy.pt"), result=result)
