"""The native back end through its real commands: planned, cleared, run, read, and not fooled."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from cadenza.benchmark.jobs import encounters
from cadenza.benchmark.jobs.cloning import RUNGS
from cadenza.cli.main import app
from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.loop.backends import native as native_episodes
from cadenza.loop.backends.native import NativeBackend, PartnerFilter
from cadenza.loop.config import LoopConfig
from cadenza.loop.config_backends import NATIVE_POLICIES
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


def configuration(**sections):
    settings = {
        "run_name": "test",
        "seed_dataset": "local/seed",
        "policy_ladder": [{"name": "bc"}],
        "eval": {"env_type": "crossing", "task_suite": "leaving_way"},
    }
    data = {"initial_episodes": 6, **sections.pop("data", {})}
    return LoopConfig.model_validate(settings | sections | {"data": data})


def proposal(count=16, focus=()):
    action = "recollect_failing" if focus else "reuse_seed"
    return Proposal(action=action, dataset="local/seed", num_episodes=count, focus=focus)


def run(plan, root):
    """Do what the loop does with a plan: clear the command, run it."""
    command = load_constitution(None).clear(plan.command, Roots(write=(root,))).argv()
    outcome = CliRunner().invoke(app, list(command[1:]))
    assert outcome.exit_code == 0, outcome.output
    assert plan.result_path.is_file()
    return command


class Cycle:
    """The requests of one small cycle below a folder."""

    def __init__(self, root):
        self.root = root
        self.backend = NativeBackend(configuration())
        seeds = SeedRange(start=50, count=30)
        self.data = DataRequest(cycle=0, proposal=proposal(), seeds=seeds, folder=root / "data")

    def train(self, dataset, **changes):
        request = TrainRequest(
            cycle=0, rung="bc", init=None, dataset=dataset, steps=30, batch_size=32,
            folder=self.root / "train",
        )  # fmt: skip
        return request.model_copy(update=changes)

    def evaluation(self, checkpoint, **changes):
        request = EvalRequest(
            cycle=0, checkpoint=checkpoint, seeds=SeedRange(start=900, count=4), batch_size=2,
            folder=self.root / "eval",
        )  # fmt: skip
        return request.model_copy(update=changes)

    def harvest(self, checkpoint, **changes):
        request = HarvestRequest(
            cycle=0, checkpoint=checkpoint, episodes=2, seeds=SeedRange(start=700, count=24),
            focus=("crossing_stationary",), repo_id="local/harvest", folder=self.root / "harvest",
        )  # fmt: skip
        return request.model_copy(update=changes)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A cycle whose jobs have run, and what the back end read of them."""
    cycle = Cycle(tmp_path_factory.mktemp("run"))
    backend, root = cycle.backend, cycle.root
    run(backend.plan_data(cycle.data), root)
    dataset = backend.read_data(cycle.data)
    train = cycle.train(dataset, steps=800)
    run(backend.plan_train(train), root)
    checkpoint = backend.read_train(train)
    evaluation, harvest = cycle.evaluation(checkpoint), cycle.harvest(checkpoint)
    run(backend.plan_eval(evaluation), root)
    run(backend.plan_harvest(harvest), root)
    return SimpleNamespace(
        root=root,
        dataset=dataset,
        train=train,
        checkpoint=checkpoint,
        report=backend.read_eval(evaluation),
        harvest=backend.read_harvest(harvest),
    )


@pytest.fixture
def cycle(done, tmp_path):
    """A copy of the finished cycle that may be damaged; requests name the copy."""
    root = tmp_path / "run"
    shutil.copytree(done.root, root)
    copy = Cycle(root)
    copy.dataset = done.dataset.model_copy(update={"root": str(root / "data" / "dataset")})
    copy.checkpoint = done.checkpoint.model_copy(update={"path": str(root / "train" / "policy.pt")})
    copy.trained = done.train.model_copy(update={"dataset": copy.dataset, "folder": root / "train"})
    return copy


def test_cycle_leaves_data_policy_figures_and_harvest(done):
    assert done.dataset.num_episodes == 16
    assert done.dataset.repo_id == "local/seed"
    assert done.checkpoint.policy_type == "bc"
    assert Path(done.checkpoint.path).is_file()
    assert done.report.n_episodes == 4
    assert [o.seed for o in done.report.outcomes] == [900, 901, 902, 903]
    assert len(done.report.per_task) == 4
    assert done.report.success_rate == sum(o.success for o in done.report.outcomes) / 4
    assert done.harvest.kept == done.harvest.successes == 2
    assert done.harvest.dataset is not None


def test_merge_joins_in_order(done, tmp_path):
    backend = NativeBackend(configuration())
    request = MergeRequest(
        sources=(done.dataset, done.harvest.dataset), repo_id="local/mix", folder=tmp_path / "merge"
    )
    command = backend.plan_merge(request).command
    outcome = CliRunner().invoke(app, list(command[1:]))
    assert outcome.exit_code == 0, outcome.output
    merged = backend.read_merge(request)
    assert merged.num_episodes == 18
    other = request.model_copy(update={"sources": (done.harvest.dataset, done.dataset)})
    with pytest.raises(IntegrityError, match="expected the result of 'merge' with"):
        backend.read_merge(other)


def test_blend_and_continuation_are_planned_and_read(done, tmp_path):
    cycle = Cycle(tmp_path)
    request = cycle.train(
        done.dataset, mix=done.harvest.dataset, mix_ratio=0.25, init=done.checkpoint.path, cycle=1
    )
    backend = NativeBackend(configuration(train={"max_epochs": 2.0}))
    plan = backend.plan_train(request)
    words = dict(word.removeprefix("--").split("=", 1) for word in plan.command[3:])
    assert words["mix"] == done.harvest.dataset.root
    assert (words["mix-ratio"], words["max-epochs"]) == ("0.25", "2.0")
    assert words["init"] == done.checkpoint.path
    assert (words["first-episodes"], "episodes" in words) == ("16", False)
    outcome = CliRunner().invoke(app, list(plan.command[1:]))
    assert outcome.exit_code == 0, outcome.output
    assert backend.read_train(request).sha256 != done.checkpoint.sha256


def test_harvest_without_success_is_read_as_nothing_kept(done, tmp_path):
    config = configuration(
        eval={"env_type": "crossing", "task_suite": "crossing_chaser", "env_args": ["--filter=off"]}
    )
    backend = NativeBackend(config)
    seeds = SeedRange(start=5, count=2)
    request = Cycle(tmp_path).harvest(done.checkpoint, seeds=seeds, focus=())
    outcome = CliRunner().invoke(app, list(backend.plan_harvest(request).command[1:]))
    assert outcome.exit_code == 0, outcome.output
    harvest = backend.read_harvest(request)
    assert (harvest.kept, harvest.successes, harvest.attempts) == (0, 0, 2)
    assert (harvest.dataset, harvest.success_rate) == (None, 0.0)


def test_part_of_the_data_is_named_by_episode(done, tmp_path):
    backend, cycle = NativeBackend(configuration()), Cycle(tmp_path)
    for update, flag in (
        ({"num_episodes": 2}, "--first-episodes=2"),
        ({"episodes": (0, 1)}, "--first-episodes=2"),
        ({"episodes": (0, 2)}, "--episodes=0,2"),
        ({"num_episodes": None}, None),
    ):
        dataset = done.dataset.model_copy(update=update)
        command = backend.plan_train(cycle.train(dataset)).command
        assert [word for word in command if "episodes=" in word] == ([flag] if flag else [])


def test_seed_dataset_of_the_user_is_taken_without_a_command(done, tmp_path):
    backend = NativeBackend(configuration(seed_root=done.dataset.root))
    request = Cycle(tmp_path).data.model_copy(update={"proposal": proposal(2)})
    assert backend.plan_data(request) is None
    dataset = backend.read_data(request)
    assert (dataset.episodes, dataset.num_episodes) == ((0, 1), 2)
    assert dataset.sha256 == done.dataset.sha256
    whole = backend.read_data(request.model_copy(update={"proposal": proposal(None)}))
    assert (whole.episodes, whole.num_episodes) == (None, None)


@pytest.mark.parametrize("text", ["default", "leaving_way", "crossing_wanderer,crossing_chaser"])
def test_back_end_and_jobs_mean_the_same_partners_by_a_name(text):
    task = encounters.job_task("crossing")
    taken = PartnerFilter(text).among(task.partners)
    assert sorted(taken) == sorted(encounters.chosen_partners(task, text.split(",")))


def test_back_end_and_jobs_agree_on_policy_types_and_the_share_of_failing_partners():
    assert tuple(RUNGS) == NATIVE_POLICIES
    assert native_episodes.FOCUS_WEIGHT == encounters.FOCUS_WEIGHT


# --- what is refused -----------------------------------------------------------------------------


def test_changed_dataset_is_refused(cycle):
    path = Path(cycle.dataset.root) / "data/chunk-000/file-000.parquet"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="the dataset was changed"):
        cycle.backend.read_data(cycle.data)


def test_changed_weights_are_refused(cycle):
    path = Path(cycle.checkpoint.path)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="expected the weights of cycle 0 with SHA-256"):
        cycle.backend.read_train(cycle.trained)
    path.unlink()
    with pytest.raises(IntegrityError, match="expected the weights of a policy, got nothing"):
        cycle.backend.read_train(cycle.trained)


def test_changed_result_is_refused(cycle):
    path = cycle.root / "eval" / "result.json"
    path.write_text(path.read_text().replace('"contact":false', '"contact":true', 1))
    with pytest.raises(IntegrityError, match="expected the content that its seal covers"):
        cycle.backend.read_eval(cycle.evaluation(cycle.checkpoint))


def test_results_of_other_requests_are_refused(cycle):
    backend = cycle.backend
    strange = cycle.checkpoint.model_copy(update={"sha256": "0" * 64})
    other_data = cycle.dataset.model_copy(update={"sha256": "0" * 64})
    asked = cycle.data.model_copy(update={"proposal": proposal(2)})
    for read, request, program in (
        (backend.read_data, asked, "collect"),
        (backend.read_eval, cycle.evaluation(strange), "evaluate"),
        (backend.read_harvest, cycle.harvest(strange), "harvest"),
    ):
        with pytest.raises(IntegrityError, match=f"expected the result of '{program}' with"):
            read(request)
    for change in (
        {"dataset": other_data},
        {"dataset": cycle.dataset.model_copy(update={"num_episodes": 15})},
        {"dataset": cycle.dataset.model_copy(update={"episodes": (0, 2)})},
        {"mix": cycle.dataset},
        {"init": cycle.checkpoint.path},
        {"steps": 1},
    ):
        with pytest.raises(IntegrityError, match="expected the result of 'train' with"):
            backend.read_train(cycle.trained.model_copy(update=change))
    with pytest.raises(IntegrityError, match="expected the weights of a policy, got nothing"):
        backend.read_train(cycle.trained.model_copy(update={"init": "gone.pt"}))
    capped = NativeBackend(configuration(train={"max_epochs": 3.0}))
    with pytest.raises(IntegrityError, match=r"with {'max_epochs': 3\.0}, got that of 'train'"):
        capped.read_train(cycle.trained)
    shutil.copy(cycle.root / "eval" / "result.json", cycle.root / "train" / "result.json")
    with pytest.raises(IntegrityError, match="got that of 'evaluate'"):
        backend.read_train(cycle.trained)


def change_sidecar(checkpoint, **extra):
    path = Path(checkpoint.path + ".json")
    facts = json.loads(path.read_text())
    facts["extra"] |= extra
    path.write_text(json.dumps(facts))


def test_policy_of_other_features_or_task_is_refused(cycle):
    change_sidecar(cycle.checkpoint, features={"observation.state": [10], "action": [3]})
    with pytest.raises(ConfigurationError, match=r"feature 'action': .* \[2\] in .*, got \[3\]"):
        cycle.backend.check_features(cycle.dataset, cycle.checkpoint)
    change_sidecar(cycle.checkpoint, task="other")
    with pytest.raises(ConfigurationError, match="expected a policy of eval"):
        cycle.backend.check_features(cycle.dataset, cycle.checkpoint)
    change_sidecar(cycle.checkpoint, features=None)
    with pytest.raises(ConfigurationError, match="expected 'features' in 'extra', got none"):
        cycle.backend.check_features(cycle.dataset, cycle.checkpoint)
    Path(cycle.checkpoint.path + ".json").unlink()
    with pytest.raises(IntegrityError, match="expected the sidecar of a checkpoint"):
        cycle.backend.check_features(cycle.dataset, cycle.checkpoint)
