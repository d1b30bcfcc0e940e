"""Copies of the run log that the configuration turns on."""

import json

import pytest

from cadenza.aht.train import train
from tests.unit.aht.parts import NoisyPartner, NoisyPointEnv, TrainerFactoryOf, config_in


class StopError(Exception):
    """Stands for a kill."""


def run(folder, config, *, stop_at=None, resume=False):
    def progress(done, total, last):
        if stop_at is not None and done >= stop_at:
            raise StopError

    return train(
        config,
        env=NoisyPointEnv(),
        partner=NoisyPartner(),
        trainer_factory=TrainerFactoryOf(),
        repo_root=folder,
        progress=progress,
        resume=resume,
    )


def tensorboard_steps(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_tensorboard_of_a_resumed_run_shows_each_step_once(tmp_path):
    pytest.importorskip("tensorboard", reason="the tensorboard extra is not installed")
    config = config_in(tmp_path, tensorboard={"enabled": True})
    with pytest.raises(StopError):
        run(tmp_path, config, stop_at=24)
    curve = run(tmp_path, config, resume=True).curve
    folder = config.log_dir / "tensorboard" / curve.run_id
    steps = [step for step, _ in tensorboard_steps(folder, "rollout/mean_reward")]
    assert steps == [8, 16, 24, 32, 40]


def test_wandb_without_a_key_warns_and_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.warns(UserWarning, match="WANDB_API_KEY missing"):
        result = run(tmp_path, config_in(tmp_path, wandb={"enabled": True}))
    last = json.loads(result.outcome.log_path.read_text().splitlines()[-1])
    assert last["event"] == "training_end"
