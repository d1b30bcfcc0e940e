"""Every algorithm trains on the crossing behind the safety filter, and resumes to the bit.

The real environment, partner, filter, loop and checkpoints; only the budget is small.
"""

import json

import pytest

from cadenza.aht.config import EgoAHTConfig
from cadenza.benchmark.training import run_training
from tests.campaigns import nightly

ALGORITHMS = ("ppo", "mappo", "happo", "sac", "hlgauss", "td3", "hatd3", "dqn", "mbpo")
FAST = ("mappo", "hatd3")
CASES = [
    pytest.param(algo, num_envs, marks=() if algo in FAST else nightly)
    for algo in ALGORITHMS
    for num_envs in (1, 2)
]


class Killed(BaseException):
    """Ends a run at a moment of the test's choice."""


def config(algo, folder, num_envs):
    values = {
        "algo": algo,
        "seed": 3,
        "total_frames": 96,
        "checkpoint_every": 32,
        "artifacts_root": folder,
        "log_dir": folder / "logs",
        "env": {"task": "crossing", "episode_length": 20, "num_envs": num_envs},
        "partner": {
            "class_name": "crossing_goal_seeker",
            "extra": {"uid": "partner", "max_speed": "0.8"},
        },
        "safety": {"enabled": True, "intervention_penalty": 0.1},
        "runtime": {"device": "cpu"},
        "evaluation": {"episodes": 1},
        "happo": {"rollout_length": 16 // num_envs},
    }
    if algo == "happo":
        values["happo"] |= {"batch_size": 8, "hidden_dim": 8, "n_epochs": 1}
    elif algo in ("ppo", "mappo"):
        values["ppo"] = values.pop("happo") | {
            "batch_size": 8,
            "hidden_sizes": [8, 8],
            "epochs": 1,
            "normalize_observations": True,
            "normalize_rewards": True,
        }
    else:
        values[algo] = {"warmup_steps": 24, "batch_size": 8, "hidden_sizes": [8]}
    if algo == "mbpo":
        values[algo] |= {
            "ensemble_size": 2,
            "num_elites": 1,
            "model_hidden": 8,
            "model_layers": 1,
            "model_updates": 4,
            "rollout_every": 2,
            "rollout_states": 4,
        }
    return EgoAHTConfig.model_validate(values)


def final_digest(folder):
    found = folder.rglob("*_step96.pt.json")
    sidecars = [path for path in found if "-state" not in path.name]
    assert len(sidecars) == 1
    return json.loads(sidecars[0].read_text("utf-8"))["sha256"]


@pytest.mark.parametrize(("algo", "num_envs"), CASES)
def test_killed_and_resumed_run_equals_an_unbroken_one(tmp_path, algo, num_envs):
    whole = config(algo, tmp_path / "whole", num_envs)
    run_training(whole)

    def kill(frames, _total, _latest):
        if frames >= 48:
            raise Killed

    broken = config(algo, tmp_path / "broken", num_envs)
    with pytest.raises(Killed):
        run_training(broken, progress=kill)
    result = run_training(broken, resume=True)
    assert result.outcome.resumed_from == 32
    assert result.outcome.frames == 96
    assert final_digest(tmp_path / "broken") == final_digest(tmp_path / "whole")
    curves = [
        json.loads(next(folder.rglob("*curve*.json")).read_text("utf-8"))["episodes"]
        for folder in (tmp_path / "whole", tmp_path / "broken")
    ]
    assert curves[0] == curves[1]
