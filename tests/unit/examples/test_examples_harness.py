"""The command line, results and evaluation that all examples share."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from examples.harness import Run, evaluate_policy, main


def example(run: Run) -> None:
    """Learns nothing; its numbers tell seed and budget."""
    (run.out / "note.txt").write_text("here", encoding="utf-8")
    run.report(0, float(run.seed))
    run.report(run.steps, 10.0 + run.seed)
    run.finish([run.seed + i for i in range(run.evaluation_episodes)], run.steps, run.steps // 2)


def run_main(*words, train=example, **changes):
    numbers = {"steps": 100, "smoke_steps": 10, "evaluation_episodes": 5} | changes
    main(train, name="demo", arguments=list(words), **numbers)


def test_all_seeds_run_and_their_mean_has_an_interval(tmp_path, capsys):
    run_main("--seeds", "3", "--seed", "4", "--out", str(tmp_path))
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert sorted(results["seeds"]) == ["4", "5", "6"]
    first = results["seeds"]["4"]
    assert first["returns"] == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert first["mean_return"] == 6.0
    assert (first["env_steps"], first["updates"]) == (100, 50)
    assert first["curve"] == [[0, 4.0], [100, 14.0]]
    # Seed means 6, 7, 8: mean 7, standard error 1 / sqrt(3), t(0.975, 2) = 4.302653.
    mean = results["mean_return"]
    assert mean["value"] == pytest.approx(7.0)
    assert mean["high"] - 7.0 == pytest.approx(4.302653 / np.sqrt(3.0), rel=1e-6)
    assert mean["estimator"] == "mean/cluster/student-t/v1"
    assert set(results["versions"]) == {"cadenza", "gymnasium", "numpy", "python", "torch"}
    assert [(tmp_path / f"seed_{s}" / "note.txt").is_file() for s in (4, 5, 6)] == [True] * 3
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.size == (800, 400)
    out = capsys.readouterr().out
    assert "demo, 100 steps" in out
    assert "mean return 7.0, 95 % interval 4.5 ... 9.5 over seeds" in " ".join(out.split())


def test_json_goes_to_stdout_alone(tmp_path, capsys):
    run_main("--json", "--out", str(tmp_path))
    captured = capsys.readouterr()
    assert json.loads(captured.out)["mean_return"]["value"] == 2.0
    assert captured.err == ""


@pytest.mark.parametrize(
    ("words", "steps", "episodes"),
    [
        ((), 100, 5),
        (("--smoke",), 10, 2),
        (("--steps", "7"), 7, 5),
        (("--smoke", "--steps", "3"), 3, 2),
    ],
)
def test_budget_and_episodes_follow_the_options(words, steps, episodes, tmp_path):
    seen = []
    run_main(*words, "--out", str(tmp_path), train=lambda run: seen.append(run) or example(run))
    (run,) = seen
    assert (run.steps, run.evaluation_episodes, run.smoke) == (steps, episodes, "--smoke" in words)


@pytest.mark.parametrize("words", [("--seeds", "0"), ("--steps", "0"), ("--seed", "-1")])
def test_numbers_out_of_range_end_with_the_usage(words, capsys):
    with pytest.raises(SystemExit) as ended:
        run_main(*words)
    assert ended.value.code == 2
    assert "expected --seed >= 0, --seeds >= 1 and --steps >= 1" in capsys.readouterr().err


def test_example_that_does_not_finish_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match=r"expected a call of run.finish"):
        run_main("--out", str(tmp_path), train=lambda run: None)


class Scripted(gymnasium.Env):
    """Rewards the action; ends after three steps, odd seeds by the clock."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(10)
    seeds: list[int] = []  # noqa: RUF012 -- what the resets were given

    def reset(self, *, seed=None, options=None):
        Scripted.seeds.append(seed)
        self.t, self.seed = 0, seed
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        done = self.t == 3
        odd = self.seed % 2 == 1
        return np.full(1, self.t, np.float32), action, done and not odd, done and odd, {}


def test_evaluation_sums_rewards_until_either_end_and_seeds_each_episode():
    Scripted.seeds.clear()
    returns = evaluate_policy(lambda obs: int(obs[0]) + 1, Scripted, episodes=3, seed=2)
    assert returns == [6.0, 6.0, 6.0]  # 1 + 2 + 3
    assert Scripted.seeds == [1_002_000, 1_002_001, 1_002_002]


def test_evaluation_by_id_is_repeatable_and_depends_on_the_seed():
    def evaluate(seed):
        return evaluate_policy(lambda obs: int(obs[2] > 0.0), "CartPole-v1", 4, seed)

    assert evaluate(0) == evaluate(0)
    assert evaluate(0) != evaluate(1)
