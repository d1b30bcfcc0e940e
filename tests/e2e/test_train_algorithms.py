"""`cadenza train` with every algorithm."""

import json

import pytest

from tests.campaigns import size
from tests.e2e.commands import REPOSITORY, cadenza

CONFIGS = REPOSITORY / "configs" / "train"
ALGORITHMS = ("ppo", "sac", "mappo", "happo", "hlgauss", "td3", "hatd3", "dqn", "mbpo")
OFF_POLICY = ("sac", "hlgauss", "td3", "hatd3", "dqn", "mbpo")


def short(algo):
    words = [
        "train",
        CONFIGS / f"mpe_cooperative_push_{algo}.yaml",
        "total_frames=160",
        "checkpoint_every=160",
        "env.num_envs=1",
        f"{'ppo' if algo in ('ppo', 'mappo') else 'happo'}.rollout_length=80",
        "evaluation.episodes=1",
    ]
    if algo in OFF_POLICY:
        words += [f"{algo}.warmup_steps=60", f"{algo}.batch_size=16"]
    return words


@pytest.mark.parametrize("algo", size(ALGORITHMS[:2], ALGORITHMS))
def test_train_with_each_algorithm(algo, tmp_path):
    done = cadenza(*short(algo), "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    summary = done.json
    assert (summary["frames"], summary["n_episodes"]) == (160, 3)
    lines = [json.loads(line) for line in (tmp_path / summary["log"]).read_text().splitlines()]
    assert {line["run_kind"] for line in lines} == {algo}
    updates = [line for line in lines if line.get("metric_namespace") == "train"]
    assert updates, "no update was logged"
    losses = [value for key, value in updates[-1].items() if key.endswith("_loss")]
    assert losses
    assert all(isinstance(value, float) for value in losses)


def test_a_setting_without_effect_is_an_error(tmp_path):
    done = cadenza(*short("sac"), "+happo.lr=0.1", cwd=tmp_path)
    assert done.code == 2
    assert "algo=sac: expected only settings that it reads, got happo.lr" in done.err
    assert "artifacts_root" not in done.err  # the key that is wrong, not the whole configuration


def test_misspelt_algorithm_and_key_are_named_once_with_what_was_probably_meant(tmp_path):
    done = cadenza("train", "crossing", "algo=scac", cwd=tmp_path)
    assert done.code == 2
    assert "sac, td3, got 'scac' (did you mean 'sac'?)." in done.err
    assert done.err.count("algo:") == 1
    done = cadenza("train", "crossing", "happo.lrr=0.1", cwd=tmp_path)
    assert (done.code, "(did you mean 'happo.lr'?)" in done.err) == (2, True)
