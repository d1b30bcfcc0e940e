"""Reading what LeRobot leaves: a report recorded from 0.4.4, and damaged ones."""

import json
from pathlib import Path

import pytest

from cadenza.core.errors import IntegrityError
from cadenza.core.files import tree_digest
from cadenza.loop.backends.lerobot import LeRobotBackend, success_rate
from cadenza.loop.config import LoopConfig
from cadenza.loop.contracts.records import (
    CheckpointRecord,
    DatasetRef,
    EvalRequest,
    HarvestRequest,
    SeedRange,
    TrainRequest,
)
from cadenza.loop.errors import EvalError, ImproveError

RECORDED = Path(__file__).with_name("recorded") / "eval_info-0.4.4.json"
STACK = LeRobotBackend(
    LoopConfig(
        run_name="r",
        seed_dataset="lerobot/pusht",
        backend="lerobot",
        eval={"env_type": "pusht", "task_suite": "PushT-v0"},
    )
)
SEEDS = SeedRange(start=700, count=3)


def recorded():
    return json.loads(RECORDED.read_text())


def request(folder, document, seeds=SEEDS):
    folder.mkdir(exist_ok=True)
    (folder / "eval_info.json").write_text(json.dumps(document))
    policy = CheckpointRecord(policy_type="act", path="/p", cycle=0)
    return EvalRequest(cycle=0, checkpoint=policy, seeds=seeds, batch_size=3, folder=folder)


def test_recorded_report_is_read_episode_by_episode(tmp_path):
    report = STACK.read_eval(request(tmp_path, recorded()))
    assert (report.success_rate, report.n_episodes, report.per_task) == (0.0, 3, {"pusht_0": 0.0})
    assert [(one.seed, one.score) for one in report.outcomes] == [
        (700, 0.0),
        (701, 0.27997028564037335),
        (702, 0.0),
    ]
    assert report.raw["overall"]["video_paths"][0].endswith("eval_episode_0.mp4")


def test_rates_are_of_tasks_and_not_of_groups(tmp_path):
    document = recorded()
    first = document["per_task"][0]["metrics"]
    second = {**first, "successes": [True, True, False], "max_rewards": [1.0, 1.0, 0.5]}
    document["per_task"] = [
        {"task_group": "spatial", "task_id": 1, "metrics": second},
        {"task_group": "spatial", "task_id": 0, "metrics": first},
    ]
    document["overall"]["pc_success"] = 100.0 * 2 / 6
    report = STACK.read_eval(request(tmp_path, document))
    assert report.per_task == {"spatial_0": 0.0, "spatial_1": 2 / 3}
    assert [(one.task, one.seed) for one in report.outcomes] == [
        (f"spatial_{task}", 700 + i) for task in range(2) for i in range(3)
    ]
    assert report.n_episodes == 6


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"overall": {"pc_success": 50.0}, "aggregated": {"pc_success": 10.0}}, 0.5),
        ({"aggregated": {"pc_success": 10.0}}, 0.1),
        ({"pc_success": 25}, 0.25),
        ({"success_rate": 0.75}, 0.75),
        ({"overall": {"success_rate": 1.0}}, 1.0),
    ],
)
def test_success_rate_is_found_where_releases_put_it(document, expected):
    assert success_rate(document, source="x") == expected


def lose_an_episode(document):
    document["per_task"][0]["metrics"]["successes"].pop()


def lose_the_scores(document):
    del document["per_task"][0]["metrics"]["max_rewards"]


def contradict(document):
    document["overall"]["pc_success"] = 50.0


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lose_an_episode, "expected 3 episodes of pusht_0, got 2"),
        (lose_the_scores, "expected successes and max_rewards of every task"),
        (contradict, "expected the success rate of its episodes, 0.0"),
    ],
)
def test_report_that_contradicts_itself_is_refused(tmp_path, damage, match):
    document = recorded()
    damage(document)
    with pytest.raises(EvalError, match=match):
        STACK.read_eval(request(tmp_path, document))


@pytest.mark.parametrize(
    ("named", "fine"),
    [
        ([700, 701, 702], True),
        ([None, None, None], True),
        ([700, 702, 701], False),
        ([700, 701], False),
        ([700, None, 702], False),
    ],
)
def test_seeds_that_a_report_names_must_be_those_asked_for(tmp_path, named, fine):
    document = recorded()
    metrics = document["per_task"][0]["metrics"]
    metrics["per_episode"] = [{"episode_ix": i, "seed": seed} for i, seed in enumerate(named)]
    asked = request(tmp_path, document)
    if fine:
        assert [one.seed for one in STACK.read_eval(asked).outcomes] == [700, 701, 702]
        return
    with pytest.raises(EvalError, match=r"pusht_0: expected episodes from the seeds 700 to 702 in"):
        STACK.read_eval(asked)


def training(folder, steps, cycle=0):
    return TrainRequest(
        cycle=cycle,
        rung="act",
        init=None,
        dataset=DatasetRef(repo_id="lerobot/pusht"),
        steps=steps,
        batch_size=2,
        folder=folder,
    )


def trained(folder, step):
    last = folder / "checkpoints" / "last"
    for name, content in {
        "pretrained_model/config.json": "{}",
        "training_state/training_step.json": json.dumps({"step": step}),
    }.items():
        (last / name).parent.mkdir(parents=True, exist_ok=True)
        (last / name).write_text(content)
    return last / "pretrained_model"


def test_policy_is_read_once_it_has_taken_all_its_steps(tmp_path):
    with pytest.raises(IntegrityError, match=r"expected a trained policy, got no config.json"):
        STACK.read_train(training(tmp_path, 20, cycle=0))
    path = trained(tmp_path, 10)
    with pytest.raises(IntegrityError, match="expected a policy after 20 steps, got 10"):
        STACK.read_train(training(tmp_path, 20, cycle=0))
    made = STACK.read_train(training(tmp_path, 10, cycle=3))
    told = {"policy_type": "act", "path": str(path), "cycle": 3, "sha256": tree_digest(path)}
    assert made == CheckpointRecord(**told)


def harvesting(folder):
    policy = CheckpointRecord(policy_type="act", path="/p", cycle=0)
    return HarvestRequest(
        cycle=0, checkpoint=policy, episodes=2, seeds=SEEDS, repo_id="local/h", folder=folder
    )


def harvested(folder, **changes):
    (folder / "dataset").mkdir(exist_ok=True)
    (folder / "dataset" / "frames").write_text("x")
    document = {
        "kept": 1,
        "successes": 1,
        "attempts": 2,
        "root": str(folder / "dataset"),
        "episodes": [{"seed": 700}, {"seed": 701}],
    }
    (folder / "result.json").write_text(json.dumps({**document, **changes}))
    return folder


def test_harvest_is_read_from_its_result_file(tmp_path):
    found = STACK.read_harvest(harvesting(harvested(tmp_path)))
    assert (found.kept, found.successes, found.attempts, found.success_rate) == (1, 1, 2, 0.5)
    assert found.dataset is not None
    assert (found.dataset.repo_id, found.dataset.num_episodes) == ("local/h", 1)
    harvested(tmp_path, kept=0, root=None)
    found = STACK.read_harvest(harvesting(tmp_path))
    assert (found.kept, found.dataset) == (0, None)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"episodes": [{"seed": 1000}, {"seed": 1001}]}, "expected attempts from seed 700"),
        ({"kept": "some"}, "expected the facts of a harvest"),
        ({"episodes": None}, "expected the facts of a harvest"),
        (
            {"attempts": 4, "episodes": [{"seed": 700 + i} for i in range(4)]},
            "expected at most 3 attempts, got 4",
        ),
    ],
)
def test_harvest_from_other_seeds_is_refused(tmp_path, changes, match):
    harvested(tmp_path, **changes)
    with pytest.raises(ImproveError, match=match):
        STACK.read_harvest(harvesting(tmp_path))
