"""Every back end keeps the contract of `cadenza.loop.backends.base.Backend` through one cycle.

LeRobot's own tools are no part of this installation; `tests/lerobot` runs its back end.
"""

from types import SimpleNamespace

import pytest

from cadenza.cli.in_process import run_in_process
from cadenza.core.errors import IntegrityError
from cadenza.loop.backends.native import NativeBackend
from cadenza.loop.config import LoopConfig
from cadenza.loop.constitution import Roots, load_constitution
from cadenza.loop.contracts.records import (
    DataRequest,
    EvalRequest,
    HarvestRequest,
    MergeRequest,
    Proposal,
    SeedRange,
    TrainRequest,
)
from cadenza.loop.resuming import require_intact
from tests.loop_fakes import FakeBackend, FakeStack

CONFIG = LoopConfig(
    run_name="contract",
    seed_dataset="local/seed",
    data={"initial_episodes": 4},
    eval={"task_suite": "leaving_way"},
)
BACKENDS = {
    "native": lambda: (NativeBackend(CONFIG), run_in_process),
    "fake": lambda: (FakeBackend(), FakeStack([0.6])),
}
SEEDS = SeedRange(start=900, count=6)


def run(cycle, request, kind):
    """Plan, clear, run and read one step."""
    plan = getattr(cycle.backend, f"plan_{kind}")(request)
    command = load_constitution(None).clear(plan.command, Roots(write=(cycle.root,))).argv()
    ended = cycle.call(command, request.folder.with_name(f"{request.folder.name}.log"))
    assert ended.exit_code == 0, ended.log_path.read_text()
    return getattr(cycle.backend, f"read_{kind}")(request)


@pytest.fixture(scope="module", params=BACKENDS)
def cycle(request, tmp_path_factory):
    """A cycle whose jobs have run: requests, and what was read, by kind."""
    root = tmp_path_factory.mktemp("run")
    backend, call = BACKENDS[request.param]()
    cycle = SimpleNamespace(root=root, backend=backend, call=call, asked={}, read={})
    folder = root / "cycle_0"

    def step(kind, made):
        cycle.asked[kind] = made
        with pytest.raises(IntegrityError):  # nothing is there before the command ran
            getattr(backend, f"read_{kind}")(made)
        cycle.read[kind] = run(cycle, made, kind)
        return cycle.read[kind]

    proposal = Proposal(action="reuse_seed", dataset="local/seed", num_episodes=4)
    seeds = SeedRange(start=50, count=20)
    dataset = step(
        "data", DataRequest(cycle=0, proposal=proposal, seeds=seeds, folder=folder / "data")
    )
    train = TrainRequest(
        cycle=0, rung="bc", init=None, dataset=dataset, steps=400, batch_size=64,
        folder=folder / "train",
    )  # fmt: skip
    policy = step("train", train)
    step(
        "eval",
        EvalRequest(cycle=0, checkpoint=policy, seeds=SEEDS, batch_size=4, folder=folder / "eval"),
    )
    harvest = HarvestRequest(
        cycle=0, checkpoint=policy, episodes=1, seeds=SeedRange(start=2000, count=20),
        repo_id="local/own", folder=folder / "harvest",
    )  # fmt: skip
    own = step("harvest", harvest)
    merge = MergeRequest(
        sources=(own.dataset, own.dataset), repo_id="local/mix", folder=folder / "merge"
    )
    step("merge", merge)
    return cycle


def test_equal_requests_give_equal_plans_inside_their_folders(cycle):
    for kind, request in cycle.asked.items():
        plans = [getattr(cycle.backend, f"plan_{kind}")(request) for _ in range(2)]
        assert plans[0] == plans[1]
        assert plans[0].output_dir.is_relative_to(request.folder)
        assert plans[0].result_path.is_file()


def test_reading_again_gives_the_same(cycle):
    for kind, request in cycle.asked.items():
        assert getattr(cycle.backend, f"read_{kind}")(request) == cycle.read[kind]


def test_command_that_runs_again_leaves_the_same(cycle):
    for kind in ("train", "eval", "merge"):
        assert run(cycle, cycle.asked[kind], kind) == cycle.read[kind]


def test_data_and_policies_carry_digests_of_what_is_on_disk(cycle):
    dataset, policy, merged = (cycle.read[kind] for kind in ("data", "train", "merge"))
    assert dataset.num_episodes == 4
    assert dataset.repo_id == "local/seed"
    assert len({dataset.sha256, policy.sha256, merged.sha256}) == 3
    assert require_intact(policy).policy_type == "bc"
    cycle.backend.check_features(dataset, policy)


def test_evaluation_plays_the_seeds_it_is_given_and_adds_up(cycle):
    report = cycle.read["eval"]
    assert [outcome.seed for outcome in report.outcomes] == list(range(900, 906))
    assert report.n_episodes == 6
    assert report.success_rate == sum(outcome.success for outcome in report.outcomes) / 6
    assert report.checkpoint == cycle.read["train"].path


def test_harvest_counts_kept_successes_and_attempts(cycle):
    harvest = cycle.read["harvest"]
    assert harvest.kept == harvest.successes == harvest.dataset.num_episodes == 1
    assert 1 <= harvest.attempts <= 20
    assert cycle.read["merge"].num_episodes == 2


def test_blend_continues_from_given_weights(cycle):
    policy, own = cycle.read["train"], cycle.read["harvest"].dataset
    request = cycle.asked["train"].model_copy(
        update={
            "mix": own, "mix_ratio": 0.5, "init": policy.path, "steps": 20,
            "folder": cycle.root / "cycle_0" / "adapt",
        }
    )  # fmt: skip
    adapted = run(cycle, request, "train")
    assert adapted.path != policy.path
    assert require_intact(adapted) == adapted
