"""Schedules of settings: their values, and what agents and egos do with them."""

import json
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import cadenza
from cadenza.aht.config import EgoAHTConfig, config_fingerprint, load_config
from cadenza.aht.train import load_algorithm
from cadenza.core.episodes import Episodes
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.agents.loop import AgentCallback
from cadenza.learn.configs import MBPOConfig, PPOConfig, SACConfig
from cadenza.learn.emote.sac import soft_actor_critic
from cadenza.schedules import cosine, linear, step
from tests.demonstrations import demonstrations
from tests.unit.aht.seats import Frozen, Seats, drive
from tests.unit.learn.counting_envs import TargetTeam
from tests.unit.learn.test_api import assert_same

REPLAY = {"hidden_sizes": (8,), "batch_size": 8, "warmup_steps": 20, "memory_size": 500}
ROLLOUT = {"hidden_sizes": (8,), "rollout_length": 16, "batch_size": 8, "epochs": 2}
MODEL = {"model_hidden": 8, "model_layers": 1, "model_updates": 10, "ensemble_size": 2}
AGENTS = {
    "SAC": lambda **more: cadenza.SAC("Pendulum-v1", num_envs=2, **REPLAY, **more),
    "TD3": lambda **more: cadenza.TD3("Pendulum-v1", **REPLAY, **more),
    "DQN": lambda **more: cadenza.DQN("CartPole-v1", **REPLAY, **more),
    "MBPO": lambda **more: cadenza.MBPO("Pendulum-v1", num_elites=1, **MODEL, **REPLAY, **more),
    "PPO": lambda **more: cadenza.PPO("CartPole-v1", num_envs=2, **ROLLOUT, **more),
    "GRPO": lambda **more: cadenza.GRPO("CartPole-v1", num_envs=4, **ROLLOUT, **more),
    "MAPPO": lambda **more: cadenza.MAPPO(TargetTeam(4), **ROLLOUT, **more),
    "HAPPO": lambda **more: cadenza.HAPPO(TargetTeam(4), **ROLLOUT, **more),
    "HATD3": lambda **more: cadenza.HATD3(TargetTeam(4), **REPLAY, **more),
}


class Seen(AgentCallback):
    """Figures of all updates, with the steps before them."""

    def __init__(self):
        self.rows = []

    def on_update(self, agent, batch, figures):
        self.rows.append((agent.steps, {name: float(value) for name, value in figures.items()}))


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (linear(1.0, 0.2, steps=4), [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        (linear(0.0, 0.4, steps=4), [0.0, 0.1, 0.2, 0.3, 0.4, 0.4]),
        # (1 + cos(pi / 4)) / 2 = 0.8536
        (cosine(1.0, 0.0, steps=4), [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, 0.1464466, 0.0, 0.0]),
        (step(1.0, 0.1, steps=4), [1.0, 1.0, 1.0, 1.0, 0.1, 0.1]),
        (step(1.0, 0.0, steps=4, stairs=2), [1.0, 1.0, 0.5, 0.5, 0.0, 0.0]),
    ],
    ids=str,
)
def test_schedules_have_the_values_of_their_formulas(schedule, values):
    assert [schedule.at(s) for s in range(6)] == pytest.approx(values, abs=1e-7)
    assert schedule.at(4) == schedule.at(10**9) == schedule.end
    assert eval(repr(schedule)) == schedule  # noqa: S307 -- of our own


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        (SACConfig, {"learning_rate": 0}, "SACConfig.learning_rate: expected greater than 0"),
        (
            SACConfig,
            {"learning_rate": {"schedule": "line", "start": 1, "end": 0, "steps": 5}},
            "SACConfig.learning_rate.schedule: expected 'linear', 'cosine' or 'step', got 'line'",
        ),
        (
            MBPOConfig,
            {"model_learning_rate": {"schedule": "linear", "start": 1, "end": -1, "steps": 5}},
            "MBPOConfig.model_learning_rate.end: expected greater than or equal to 0, got -1",
        ),
        (
            PPOConfig,
            {"entropy_coefficient": {"schedule": "linear", "start": 1, "end": 0}},
            "PPOConfig.entropy_coefficient.steps: expected a value, got none",
        ),
        (
            PPOConfig,
            {"learning_rate": linear(1.0, 0.0, steps=5), "decay_learning_rate": True},
            "decay_learning_rate: expected False beside a schedule of learning_rate, got True",
        ),
        (
            SACConfig,
            {
                "learning_rate": {
                    "schedule": "cosine",
                    "start": 1,
                    "end": 0,
                    "steps": 5,
                    "stairs": 2,
                }
            },
            "stairs: expected 1 without schedule='step', got 2",
        ),
    ],
)
def test_wrong_schedules_are_refused_in_one_sentence(kind, settings, told):
    with pytest.raises(ConfigurationError) as refused:
        kind(**settings)
    assert told in str(refused.value)


def test_schedules_are_the_same_in_python_and_in_files():
    config = PPOConfig(
        learning_rate=cosine(3e-4, 0.0, steps=1_000), entropy_coefficient=step(0.1, 0.0, steps=9)
    )
    assert PPOConfig(**json.loads(config.model_dump_json())) == config
    written = {"schedule": "cosine", "start": 3e-4, "end": 0.0, "steps": 1_000}
    assert PPOConfig(learning_rate=written).learning_rate == config.learning_rate


@pytest.mark.parametrize("name", AGENTS)
def test_learning_rate_follows_the_steps_in_whatever_parts_they_are_taken(name, tmp_path):
    schedule = linear(1e-2, 1e-3, steps=150)
    seen = Seen()
    whole = AGENTS[name](learning_rate=schedule)
    whole.learn(120, callbacks=seen, progress=False)
    saved = whole.save(tmp_path / "half")
    whole.learn(80, callbacks=seen, progress=False)
    batch = whole._buffer.shape if hasattr(whole, "_buffer") else None
    collected = 0 if batch is None else ROLLOUT["rollout_length"] * whole.envs.num_envs
    rates = [(max(0, steps - collected), told["learning_rate"]) for steps, told in seen.rows]
    if name != "GRPO":  # whose rollouts end with their episodes
        assert rates == [(steps, schedule.at(steps)) for steps, _ in rates]
    assert rates[0][1] > rates[-1][1]
    again = type(whole).load(saved, TargetTeam(4) if "MA" in name or "HA" in name else None)
    again.learn(80, progress=False)
    assert again.config.learning_rate == schedule
    if "HA" not in name and "MA" not in name:  # whose batches cannot be repeated
        assert_same(again, whole)


@pytest.mark.parametrize("name", AGENTS)
def test_schedule_that_stays_gives_the_bits_of_its_number(name):
    plain = AGENTS[name](learning_rate=1e-2).learn(120, progress=False)
    still = AGENTS[name](learning_rate=linear(1e-2, 1e-2, steps=50)).learn(120, progress=False)
    moved = AGENTS[name](learning_rate=step(1e-2, 0.0, steps=50)).learn(120, progress=False)
    digests = [repr(agent.learner.state_dict()) for agent in (plain, still, moved)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("name", ["PPO", "GRPO", "MAPPO", "HAPPO"])
def test_entropy_bonus_follows_its_schedule(name):
    fading = step(0.5, 0.0, steps=100)
    seen = Seen()
    agent = AGENTS[name](entropy_coefficient=fading).learn(200, callbacks=seen, progress=False)
    told = [figures["entropy_coefficient"] for _, figures in seen.rows]
    assert (told[0], told[-1]) == (0.5, 0.0)
    always = AGENTS[name](entropy_coefficient=0.5).learn(200, progress=False)
    assert repr(always.learner.state_dict()) != repr(agent.learner.state_dict())


def test_compiled_updates_take_every_rate_without_compiling_again():
    schedule = linear(1e-2, 0.0, steps=60)
    agent = cadenza.DQN("CartPole-v1", compile=True, learning_rate=schedule, **REPLAY)
    agent.learn(25, progress=False)
    with torch.compiler.set_stance("fail_on_recompile"):
        before = [p.detach().clone() for p in agent.learner.q.parameters()]
        agent.learn(35, progress=False)
        after = [p.detach().clone() for p in agent.learner.q.parameters()]
        agent.learn(10, progress=False)
    assert any((a != b).any() for a, b in zip(before, after, strict=True))
    still = agent.learner.q.parameters()
    assert all((a == b).all() for a, b in zip(after, still, strict=True))  # a rate of 0


def test_agents_that_imitate_follow_schedules_too():
    seen, spaces = Seen(), (Box(-9.0, 9.0, (3,)), Box(-4.0, 4.0, (2,)))
    shown = Episodes.of(demonstrations((9, 8)))
    schedule = linear(1e-2, 0.0, steps=10)
    clone = cadenza.BC(spaces, demonstrations=shown, learning_rate=schedule, hidden_sizes=(8,))
    clone.learn(12, callbacks=seen, progress=False)
    assert [told["learning_rate"] for _, told in seen.rows] == [schedule.at(i) for i in range(12)]
    seen, schedule = Seen(), step(1e-2, 1e-3, steps=20)
    learner = cadenza.DAgger(
        "Pendulum-v1", expert=lambda rows: rows[:, 1:2], num_envs=2, round_length=8, updates=2,
        learning_rate=schedule, hidden_sizes=(8,),
    )  # fmt: skip
    learner.learn(32, callbacks=seen, progress=False)
    begun = [told["learning_rate"] for _, told in seen.rows[::2]]  # a fit after 16, one after 32
    assert begun == [1e-2, 1e-3]


def test_log_tells_the_learning_rate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    schedule = linear(1e-2, 0.0, steps=100)
    agent = AGENTS["DQN"](learning_rate=schedule)
    agent.learn(100, log="jsonl", log_every=50, folder="run", progress=False)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    rates = [line["training/learning_rate"] for line in lines if "training/updates" in line]
    assert rates == [schedule.at(50), 0.0]
    assert "learning_rate=linear(0.01, 0.0, steps=100)" in repr(agent)


@pytest.mark.parametrize(
    ("algo", "section"),
    [("sac", "sac"), ("hatd3", "hatd3"), ("dqn", "dqn"), ("ppo", "ppo"), ("happo", "happo")],
)
def test_egos_follow_schedules(algo, section):
    def trained(rate):
        small = {} if algo == "happo" else {"hidden_sizes": (8,), "batch_size": 8}
        if algo in ("sac", "hatd3", "dqn"):
            small |= {"warmup_steps": 4}
        name = "lr" if algo == "happo" else "learning_rate"
        config = EgoAHTConfig.model_validate(
            {"algo": algo, "env": {"task": "any"}, section: {**small, name: rate}}
        )
        trainer = load_algorithm(algo)(config, env=Seats(), partner=Frozen(), ego_uid="ego")
        drive(trainer, np.random.default_rng(0), 32)
        return repr(trainer.state_dict())

    plain, still = trained(1e-2), trained(linear(1e-2, 1e-2, steps=5))
    faded = trained({"schedule": "step", "start": 1e-2, "end": 0.0, "steps": 12})
    lasting = trained({"schedule": "step", "start": 1e-2, "end": 0.0, "steps": 24})
    assert plain == still
    assert len({plain, faded, lasting}) == 3


def test_yaml_and_overrides_name_schedules(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "algo: sac\nenv: {task: any}\n"
        "sac:\n  learning_rate: {schedule: cosine, start: 1.0e-3, end: 0.0, steps: 1000}\n"
    )
    plain = load_config(config_path=path)
    assert plain.sac.learning_rate == cosine(1e-3, 0.0, steps=1_000)
    other = load_config(config_path=path, overrides=["sac.learning_rate.steps=2000"])
    assert other.sac.learning_rate == cosine(1e-3, 0.0, steps=2_000)
    assert config_fingerprint(plain) != config_fingerprint(other)


def test_losses_that_count_no_steps_refuse_a_schedule():
    config = SACConfig(learning_rate=linear(1.0, 0.0, steps=5))
    with pytest.raises(InputError, match="expected one learning_rate, got linear"):
        soft_actor_critic(torch.nn.Linear(1, 1), [], torch.zeros(1), 1, config)
