"""Evaluations pair by seed, add up, and do not depend on how they are cut into parts."""

import json

import pytest

from cadenza.benchmark.jobs.encounters import Evaluation, evaluate
from cadenza.core.errors import CheckpointError, ConfigurationError


def evaluation(clone, tmp_path, name="job", **changes):
    settings = {
        "policy": clone.path,
        "task": "crossing",
        "seed_start": 100,
        "episodes": 5,
        "out": tmp_path / name,
        "result": tmp_path / f"{name}.json",
    }
    return Evaluation(**(settings | changes))


def test_partner_follows_from_the_seed_so_that_ranges_continue_one_another(clone, tmp_path):
    whole = evaluate(evaluation(clone, tmp_path))["episodes"]
    last = evaluation(clone, tmp_path, "last", seed_start=104, episodes=1, batch_size=1)
    assert [one["seed"] for one in whole] == [100, 101, 102, 103, 104]
    assert len({one["partner"] for one in whole}) == 5
    assert whole[4:] == evaluate(last)["episodes"]


def test_size_of_the_parts_changes_no_byte_of_the_result(clone, tmp_path):
    evaluate(evaluation(clone, tmp_path, "one", batch_size=5))
    evaluate(evaluation(clone, tmp_path, "two", batch_size=2))
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert len(list((tmp_path / "one/blocks").iterdir())) == 1
    assert len(list((tmp_path / "two/blocks").iterdir())) == 3


def test_figures_follow_from_the_episodes(clone, tmp_path):
    result = evaluate(evaluation(clone, tmp_path, partners=("leaving_way",)))
    written = json.loads((tmp_path / "job.json").read_text())
    episodes = result["episodes"]
    assert written["episodes"] == episodes
    wins = sum(one["success"] for one in episodes)
    assert result["overall"]["success_rate"] == wins / 5
    total = sum(one["return"] for one in episodes)
    assert result["overall"]["mean_return"] == pytest.approx(total / 5)
    assert sum(task["n_episodes"] for task in result["per_task"].values()) == 5
    assert result["policy_sha256"] == clone.result["policy"]["sha256"]
    assert result["features"] == {"observation.state": [10], "action": [2]}


@pytest.mark.parametrize("changes", [{"episodes": 0}, {"batch_size": 0}, {"seed_start": -1}])
def test_impossible_counts_are_refused(clone, tmp_path, changes):
    with pytest.raises(ConfigurationError, match="expected --episodes >= 1, --batch-size >= 1"):
        evaluation(clone, tmp_path, **changes)


def test_missing_policy_is_refused(clone, tmp_path):
    with pytest.raises(CheckpointError, match="payload not found"):
        evaluate(evaluation(clone, tmp_path, policy=tmp_path / "none.pt"))
