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


def test_tensorboard_gets_the_scalars_of_the_run(tmp_path):
    pytest.importorskip("tensorboard", reason="the tensorboard extra is not installed")
    config = config_in(tmp_path, tensorboard={"enabled": True})
    curve = run(tmp_path, config).curve
    folder = config.log_dir / "tensorboard" / curve.run_id
    points = tensorboard_steps(folder, "rollout/mean_reward")
    assert [step for step, _ in points] == [8, 16, 24, 32, 40]
    assert points[0][1] == pytest.approx(sum(curve.per_step_ego_rewards[:8]) / 8, rel=1e-6)


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


def test_wandb_gets_the_events_and_the_configuration(tmp_path, monkeypatch):
    class Recorder:
        def __init__(self):
            self.logged = []
            self.closed = False

        def set_config(self, config):
            self.config = dict(config)

        def log(self, data, *, step=None):
            self.logged.append((data["event"], step))

        def add_tags(self, tags):
            pass

        def close(self):
            self.closed = True

    recorder, calls = Recorder(), []

    def make(cfg, ctx, **options):
        calls.append((cfg.project, options["resume"], options["config_extras"]["config"]["seed"]))
        return recorder

    monkeypatch.setattr("cadenza.aht.run.make_wandb_run_sink", make)
    result = run(tmp_path, config_in(tmp_path, wandb={"enabled": True, "project": "p"}))
    assert calls == [("p", False, 3)]
    assert recorder.config["run_id"] == result.curve.run_id
    assert recorder.logged[0] == ("training_start", None)
    assert ("rollout_update", 8) in recorder.logged
    assert recorder.closed
