"""The command line and the results of all scripts with a score."""

import json

import numpy as np
import pytest
from PIL import Image

from examples.harness import Outcome, command_line, main


def example(run):
    """Learns nothing; its numbers tell seed and budget."""
    (run.out / "note.txt").write_text("here", encoding="utf-8")
    run.report(0, float(run.seed))
    run.report(run.steps, 10.0 + run.seed)
    returns = [run.seed + i for i in range(run.episodes)]
    return Outcome(returns=returns, env_steps=run.steps, updates=run.steps // 2)


def run_main(*words, train=example):
    options = command_line("demo").parse_args(words)
    main(train, name="demo", steps=100, smoke_steps=10, episodes=5, options=options)


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
    (mean,) = results["mean_return"].values()
    assert mean["value"] == pytest.approx(7.0)
    assert mean["high"] - 7.0 == pytest.approx(4.302653 / np.sqrt(3.0), rel=1e-6)
    assert set(results["versions"]) == {"cadenza", "gymnasium", "numpy", "python", "torch"}
    assert [(tmp_path / f"seed_{s}" / "note.txt").is_file() for s in (4, 5, 6)] == [True] * 3
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.size == (800, 400)
    out = " ".join(capsys.readouterr().out.split())
    assert "cadenza, over seeds: 7.0, 95 % interval 4.5 ... 9.5" in out


def test_comparison_has_an_interval_for_the_difference(tmp_path, capsys):
    def compared(run):
        ours, theirs = {0: (3.0, 1.0), 1: (5.0, 5.0)}[run.seed]
        return Outcome(returns=[ours], env_steps=1, updates=1, peer_returns=[theirs, theirs])

    run_main("--json", "--seeds", "2", "--out", str(tmp_path), train=compared)
    means = json.loads(capsys.readouterr().out)["mean_return"]
    # Differences 2 and 0: mean 1, standard error 1, t(0.975, 1) = 12.7062.
    assert means["difference, over seeds"]["value"] == 1.0
    assert means["difference, over seeds"]["low"] == pytest.approx(1.0 - 12.7062, abs=1e-4)
    assert means["Stable-Baselines3, over seeds"]["value"] == 3.0


@pytest.mark.parametrize(
    ("words", "steps", "episodes"),
    [((), 100, 5), (("--smoke",), 10, 2), (("--smoke", "--steps", "3"), 3, 2)],
)
def test_budget_and_episodes_follow_the_options(words, steps, episodes, tmp_path, capsys):
    seen = []
    run_main(*words, "--json", "--out", str(tmp_path), train=lambda r: seen.append(r) or example(r))
    (run,) = seen
    assert (run.steps, run.episodes, run.smoke) == (steps, episodes, "--smoke" in words)
    (mean,) = json.loads(capsys.readouterr().out)["mean_return"].items()
    assert mean[0] == "cadenza, over episodes"  # of a single seed


@pytest.mark.parametrize("words", [("--seeds", "0"), ("--steps", "0"), ("--seed", "-1")])
def test_numbers_out_of_range_end_with_the_usage(words, capsys):
    with pytest.raises(SystemExit) as ended:
        run_main(*words)
    assert ended.value.code == 2
    assert "expected an int >= " in capsys.readouterr().err
