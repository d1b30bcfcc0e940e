from pathlib import Path

import pytest

from cadenza.loop.backends.base import (
    DataRequest,
    EvalRequest,
    HarvestRequest,
    MergeRequest,
    SeedRange,
)
from cadenza.loop.backends.native import NativeBackend
from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import CheckpointRecord, DatasetRef, Proposal
from cadenza.loop.dry_run import DryBackend, throw_away

POLICY = CheckpointRecord(policy_type="bc", path="/p", cycle=0)
SEEDS = SeedRange(start=7, count=10)


def config(**changes):
    fixed = {"run_name": "r", "seed_dataset": "local/d", "data": {"initial_episodes": 4}}
    return LoopConfig(**(fixed | changes))


@pytest.fixture
def backend():
    return DryBackend(NativeBackend(config()))


def test_nothing_outside_a_folder_that_goes_is_written_asked_or_waited_for(tmp_path):
    settings = config(
        workdir=tmp_path,
        store="postgresql://host/db",
        llm="openai:m",
        knowledge={"root": tmp_path},
        curation={"enabled": True},
        approval={"gates": ["promote"]},
    )
    with throw_away(settings) as dry:
        folder = dry.workdir.parent
        assert folder.is_dir()
        assert not folder.is_relative_to(tmp_path)
        assert dry.knowledge.root.parent == folder
        assert (dry.store, dry.llm, dry.approval.gates) == (None, None, ())
        assert not dry.curation.enabled
        assert dry.budgets == settings.budgets
    assert not folder.exists()


def test_every_other_initial_state_counts_as_solved(backend, tmp_path):
    request = EvalRequest(cycle=0, checkpoint=POLICY, seeds=SEEDS, batch_size=5, folder=tmp_path)
    report = backend.read_eval(request)
    assert report.success_rate == 0.5
    assert [outcome.seed for outcome in report.outcomes] == list(range(7, 17))
    assert [outcome.success for outcome in report.outcomes] == [False, True] * 5
    assert backend.plan_eval(request).command == NativeBackend(config()).plan_eval(request).command
    assert backend.plan_eval(request).result_path is None


def test_data_that_a_command_makes_lies_in_its_folder_and_other_data_where_it_is(tmp_path):
    proposal = Proposal(action="reuse_seed", dataset="local/d", num_episodes=3)
    request = DataRequest(cycle=0, proposal=proposal, seeds=SEEDS, folder=tmp_path)
    made = DryBackend(NativeBackend(config())).read_data(request)
    assert (made.root, made.num_episodes) == (str(tmp_path / "dataset"), 3)
    given = Path("/data/seed")
    there = DryBackend(NativeBackend(config(seed_root=given)), given).read_data(request)
    assert there.root == "/data/seed"


def test_a_harvest_keeps_what_was_wanted_and_a_merge_joins_it(backend, tmp_path):
    request = HarvestRequest(
        cycle=0, checkpoint=POLICY, episodes=4, seeds=SEEDS, repo_id="local/h", folder=tmp_path
    )
    harvest = backend.read_harvest(request)
    assert (harvest.kept, harvest.successes, harvest.attempts) == (4, 4, 8)
    other = DatasetRef(repo_id="local/o", root="/o", num_episodes=6)
    merge = MergeRequest(sources=(harvest.dataset, other), repo_id="local/m", folder=tmp_path)
    assert backend.read_merge(merge).num_episodes == 10
