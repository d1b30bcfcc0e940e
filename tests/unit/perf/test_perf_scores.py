"""The results of repeated scores, and their command line."""

import numpy as np
import pytest
from PIL import Image

from perf.scores import Outcome, main, plot_curves, print_table, repeat


def example(run):
    """Learns nothing; its numbers tell seed and budget."""
    run.report(0, float(run.seed))
    run.report(run.steps, 10.0 + run.seed)
    returns = [run.seed + i for i in range(run.episodes)]
    return Outcome(returns=returns, env_steps=run.steps, updates=run.steps // 2)


def test_all_seeds_run_and_their_mean_has_an_interval(tmp_path, capsys):
    results = repeat(example, "demo", [4, 5, 6], steps=100, episodes=5, smoke=False)
    assert sorted(results["seeds"]) == ["4", "5", "6"]
    first = results["seeds"]["4"]
    assert first["returns"] == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert first["mean_return"] == 6.0
    assert (first["env_steps"], first["updates"]) == (100, 50)
    assert first["curve"] == [(0, 4.0), (100, 14.0)]
    # Seed means 6, 7, 8: mean 7, standard error 1 / sqrt(3), t(0.975, 2) = 4.302653.
    (mean,) = results["mean_return"].values()
    assert mean["value"] == pytest.approx(7.0)
    assert mean["high"] - 7.0 == pytest.approx(4.302653 / np.sqrt(3.0), rel=1e-6)
    assert set(results["versions"]) == {"cadenza", "gymnasium", "numpy", "python", "torch"}
    print_table(results, tmp_path)
    out = " ".join(capsys.readouterr().out.split())
    assert "cadenza, over seeds: 7.0, 95 % interval 4.5 ... 9.5" in out
    plot_curves("demo", [entry["curve"] for entry in results["seeds"].values()], tmp_path / "c.png")
    with Image.open(tmp_path / "c.png") as picture:
        assert picture.size == (800, 400)


def test_single_seed_has_an_interval_over_its_episodes():
    results = repeat(example, "demo", [0], steps=10, episodes=2, smoke=True)
    assert (results["steps"], results["episodes"], results["smoke"]) == (10, 2, True)
    (mean,) = results["mean_return"].items()
    assert mean[0] == "cadenza, over episodes"
    # Returns 0 and 1: mean 0.5, standard error 0.5, t(0.975, 1) = 12.7062.
    assert mean[1]["low"] == pytest.approx(0.5 - 0.5 * 12.7062, abs=1e-4)


def test_comparison_has_an_interval_for_the_difference():
    def compared(run):
        ours, theirs = {0: (3.0, 1.0), 1: (5.0, 5.0)}[run.seed]
        return Outcome(returns=[ours], env_steps=1, updates=1, peer_returns=[theirs, theirs])

    results = repeat(compared, "demo", [0, 1], steps=1, episodes=1, smoke=False)
    means = results["mean_return"]
    # Differences 2 and 0: mean 1, standard error 1, t(0.975, 1) = 12.7062.
    assert means["difference, over seeds"]["value"] == 1.0
    assert means["difference, over seeds"]["low"] == pytest.approx(1.0 - 12.7062, abs=1e-4)
    assert means["Stable-Baselines3, over seeds"]["value"] == 3.0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--seeds", "0"), "expected an int >= 1"),
        (("--steps", "0"), "expected an int >= 1"),
        (("--seed", "-1"), "expected an int >= 0"),
        (("--sb3",), "expected one of"),  # no such task beside the peer
    ],
)
def test_wrong_options_end_with_the_usage(words, told, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["cooperative_push_happo", *words])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
