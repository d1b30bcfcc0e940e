"""The back end's own choices: data, steps, seeds, devices; no LeRobot is needed for plans."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.loop.backends import lerobot
from cadenza.loop.backends.lerobot import LeRobotBackend
from cadenza.loop.backends.lerobot_probe import LeRobotTools
from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import (
    DataRequest,
    DatasetRef,
    MergeRequest,
    Proposal,
    SeedRange,
    TrainRequest,
)
from cadenza.loop.errors import ImproveError
from tests.unit.loop.backends.test_lerobot_probe import TEXTS, environment


@pytest.fixture(autouse=True)
def without_lerobot(monkeypatch, tmp_path):
    monkeypatch.setenv("CADENZA_LEROBOT_PYTHON", str(tmp_path / "none"))


def backend(**changes):
    document = {
        "run_name": "r",
        "seed_dataset": "lerobot/pusht",
        "backend": "lerobot",
        "policy_ladder": [{"name": "act"}],
        **changes,
    }
    return LeRobotBackend(LoopConfig.from_document(document, source="test"))


def dataset(root, lengths=(100, 100, 100, 100)):
    folder = root / "meta" / "episodes" / "chunk-000"
    folder.mkdir(parents=True)
    info = {"total_episodes": len(lengths), "total_frames": sum(lengths), "features": {}}
    (root / "meta" / "info.json").write_text(json.dumps(info))
    rows = {"episode_index": range(len(lengths)), "length": lengths}
    parquet.write_table(pa.table(rows), folder / "file-000.parquet")
    return root


def data_request(folder, **proposal):
    asked = Proposal(action="reuse_seed", dataset="lerobot/pusht", **proposal)
    return DataRequest(
        cycle=0, proposal=asked, seeds=SeedRange(start=0, count=1), folder=folder / "data"
    )


def train_request(folder, **changes):
    request = TrainRequest(
        cycle=0,
        rung="act",
        init=None,
        dataset=DatasetRef(repo_id="lerobot/pusht"),
        steps=100,
        batch_size=10,
        folder=folder / "train",
    )
    return request.model_copy(update=changes)


@pytest.mark.parametrize(
    ("asked", "episodes", "count"), [(None, None, 4), (9, None, 4), (2, (0, 1), 2)]
)
def test_local_dataset_is_taken_whole_or_its_first_episodes(tmp_path, asked, episodes, count):
    root = dataset(tmp_path / "seed")
    found = backend(seed_root=str(root)).read_data(data_request(tmp_path, num_episodes=asked))
    assert (found.root, found.episodes, found.num_episodes) == (str(root), episodes, count)
    assert found.sha256 is not None


def test_suite_of_the_user_is_chosen_by_a_job_with_its_tasks_in_focus(tmp_path):
    stack = backend(data={"task_filter": "libero_spatial"})
    request = data_request(
        tmp_path, num_episodes=2, notes="n", focus=("libero_spatial_3", "libero_object_1")
    )
    plan = stack.plan_data(request)
    assert plan is not None
    assert "--suite=libero_spatial" in plan.command
    assert "--focus=libero_spatial_3" in plan.command
    request.folder.mkdir()
    assert plan.result_path is not None
    plan.result_path.write_text(
        json.dumps({"episodes": [5, 8], "tasks_covered": 1, "suite_tasks": 10})
    )
    found = stack.read_data(request)
    assert (found.episodes, found.num_episodes) == ((5, 8), 2)
    assert found.notes == "n | suite=libero_spatial, 1/10 tasks covered"


def steps_of(stack, request):
    return next(w for w in stack.plan_train(request).command if w.startswith("--steps="))


def test_small_data_is_not_seen_more_often_than_allowed(tmp_path):
    root = dataset(tmp_path / "seed")  # 400 frames, batches of 10: one epoch is 40 steps
    whole = DatasetRef(repo_id="local/x", root=str(root))
    capped = backend(train={"max_epochs": 2.0})
    assert steps_of(capped, train_request(tmp_path, dataset=whole)) == "--steps=80"
    half = whole.model_copy(update={"episodes": (0, 1)})
    assert steps_of(capped, train_request(tmp_path, dataset=half)) == "--steps=40"
    assert steps_of(capped, train_request(tmp_path, dataset=whole, steps=7)) == "--steps=7"
    nowhere = whole.model_copy(update={"root": str(tmp_path / "nowhere")})
    assert steps_of(capped, train_request(tmp_path, dataset=nowhere)) == "--steps=100"
    assert steps_of(backend(), train_request(tmp_path, dataset=whole)) == "--steps=100"
    alone = train_request(tmp_path, mix=half, mix_ratio=1.0)
    assert steps_of(capped, alone) == "--steps=40"


def test_blend_is_seen_as_often_as_its_own_frames_allow(tmp_path):
    # 100 episodes of 100 frames and 2 of 400: at a half, 8 of the 100 stay, 1600 frames in all
    own = DatasetRef(repo_id="local/x", root=str(dataset(tmp_path / "own", [100] * 100)))
    mix = DatasetRef(repo_id="local/m", root=str(dataset(tmp_path / "mix", [400, 400])))
    capped = backend(train={"max_epochs": 1.0})
    request = train_request(tmp_path, dataset=own, mix=mix, mix_ratio=0.5, steps=5000)
    assert steps_of(capped, request) == "--steps=160"
    few = own.model_copy(update={"episodes": (7, 9, 11, 13)})  # 400 frames, so one of the two stays
    assert steps_of(capped, request.model_copy(update={"dataset": few})) == "--steps=80"
    assert steps_of(capped, request.model_copy(update={"mix_ratio": 0.0})) == "--steps=1000"
    hub = DatasetRef(repo_id="lerobot/pusht")  # at most 800 / 0.5 frames, whatever it has
    assert steps_of(capped, request.model_copy(update={"dataset": hub})) == "--steps=160"
    for there in ("dataset", "mix"):
        unmade = own.model_copy(update={"root": str(tmp_path / "nowhere")})
        assert steps_of(capped, request.model_copy(update={there: unmade})) == "--steps=5000"


def merging(folder, features):
    sources = []
    for name, found in zip("ab", features, strict=True):
        root = folder / name
        (root / "meta").mkdir(parents=True)
        (root / "meta" / "info.json").write_text(json.dumps({"features": found}))
        sources.append(DatasetRef(repo_id=f"local/{name}", root=str(root), num_episodes=2))
    return MergeRequest(sources=tuple(sources), repo_id="local/m", folder=folder / "merge")


def test_merge_is_refused_for_other_features_and_checked_for_all_episodes(tmp_path):
    action = {"action": {"dtype": "float32", "shape": [2]}}
    request = merging(tmp_path / "good", (action, action))
    plan = backend().plan_merge(request)
    (request.folder / "dataset").mkdir(parents=True)
    (request.folder / "dataset" / "frames").write_text("x")
    assert plan.result_path is not None
    facts = {"root": str(request.folder / "dataset"), "episodes": 4}
    plan.result_path.write_text(json.dumps(facts))
    assert backend().read_merge(request).num_episodes == 4
    plan.result_path.write_text(json.dumps({**facts, "episodes": 3}))
    with pytest.raises(IntegrityError, match="expected a dataset of 4 episodes, got 3"):
        backend().read_merge(request)
    longer = {**action, "observation.state": {"dtype": "float32", "shape": [3]}}
    for number, pair in enumerate(((action, longer), (longer, action))):
        with pytest.raises(ImproveError, match=r"observation.state: expected dataset"):
            backend().plan_merge(merging(tmp_path / str(number), pair))


class Described:
    """Stands for the script that describes an environment; keeps the words it was given."""

    def __init__(self, **changes):
        seeds = {"repeats": True, "differs": True, **changes}
        self.words: list[tuple[str, ...]] = []
        self.facts = {"seeds": {"spatial_0": seeds}, "evaluated_seeds": [100, 101, 102, 103, 104]}
        self.facts |= {"observation": {}, "action": [2]}

    def __call__(self, _environment, words):
        self.words.append(tuple(words))
        return Path("described.json"), self.facts


def installed(monkeypatch, folder, described):
    monkeypatch.setattr(lerobot, "describe_environment", described)
    tools = LeRobotTools.from_help("0.4.4", TEXTS)
    monkeypatch.setattr(lerobot, "probe", lambda _environment: tools)
    document = {"run_name": "r", "seed_dataset": "a/b", "backend": "lerobot"}
    config = LoopConfig.from_document(document, source="test")
    return LeRobotBackend(config, environment=environment(folder / "lerobot"))


def test_run_records_what_its_seeds_mean_in_the_environment_that_it_plays(monkeypatch, tmp_path):
    described = Described()
    stack = installed(monkeypatch, tmp_path, described)
    for _ in range(2):
        recorded = stack.capabilities
        assert recorded["initial_states"] == "chosen by the seed, as resets of spatial_0 show"
        assert recorded["evaluated_seeds"] == "start + episode, as a trial shows"
    assert described.words == [
        ("--env-type=libero", "--task=libero_spatial", "--env.init_states=false")
    ]


def test_environment_that_ignores_its_seeds_is_refused_before_a_run_and_before_a_training(
    monkeypatch, tmp_path
):
    stack = installed(monkeypatch, tmp_path, Described(repeats=False))
    message = r"spatial_0: expected the seed to choose .* again \(described.json\)"
    with pytest.raises(ConfigurationError, match=message):
        _ = stack.capabilities
    on_the_hub = DatasetRef(repo_id="a/b")  # whose features nobody can compare
    with pytest.raises(ConfigurationError, match=message):
        stack.check_features(on_the_hub, None)
