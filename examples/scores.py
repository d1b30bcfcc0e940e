"""Repeats the scores of the learning algorithms, and compares with Stable-Baselines3.

    python examples/scores.py --help                      # names the tasks
    python examples/scores.py pendulum_sac --seeds 5
    python examples/scores.py pendulum_sac --sb3 --seeds 5

`scores.yaml` holds the tasks. With ``--sb3`` both libraries train with equal settings, which may be
others than those of the score, play the same episodes, and the difference has a 95 % interval.
Needs `pip install 'cadenza[box2d]'` for the lander, `pip install 'cadenza[mujoco]'` for the
cheetah, and `pip install 'cadenza[bench]'` for the comparison.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import yaml
from gymnasium.wrappers import TransformReward
from harness import Outcome, Run, command_line, main

import cadenza
from cadenza.envs import VectorMPECooperativePushEnv
from cadenza.learn import Callback
from cadenza.learn.judging import evaluate_policy

#: Two robots that cover two landmarks together.
PUSH = "cooperative_push"
#: Root seed of a team's evaluation episodes, apart from that of every training.
HELD_OUT = 1_000_000
#: Points of a learning curve.
POINTS = 50


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training; ``scores.yaml`` says what the keys mean."""

    env: str
    algorithm: str
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    episodes: int = 50
    reward_scale: float = 1.0


#: The peer's names, where they differ from ours.
THEIR_NAMES = {
    "warmup_steps": "learning_starts",
    "train_every": "train_freq",
    "rollout_length": "n_steps",
    "epochs": "n_epochs",
    "entropy_coefficient": "ent_coef",
}
#: Settings of ``--smoke``.
SMALL = {"warmup_steps": 100, "rollout_length": 64, "model_updates": 50}


class Curve(Callback):
    """Reports an agent's mean training return, its rewards unscaled, now and then."""

    def __init__(self, run: Run, agent: Any, reward_scale: float = 1.0) -> None:
        super().__init__()
        self._run, self._agent, self._scale, self._next = run, agent, reward_scale, 0.0

    def end_batch(self) -> None:
        """Add a point if it is time and an episode has ended."""
        agent = self._agent
        if agent.steps >= self._next and not math.isnan(agent.mean_return):
            self._next = agent.steps + self._run.steps / POINTS
            self._run.report(agent.steps, agent.mean_return / self._scale)


def pushes(count: int, *, seed: int) -> VectorMPECooperativePushEnv:
    """Return ``count`` environments of cooperative push."""
    return VectorMPECooperativePushEnv(count, root_seed=seed, episode_length=50)


def scaled(env_id: str, reward_scale: float) -> gymnasium.Env[Any, Any]:
    """Return the environment with scaled rewards."""
    return TransformReward(gymnasium.make(env_id), lambda reward: reward_scale * float(reward))


def train(task: Task, sb3: bool, run: Run) -> Outcome:
    """Train one seed, and the peer if asked to; judge the last policies greedily."""
    if task.env == PUSH:
        make: Any = partial(pushes, seed=run.seed)
        judge: Any = pushes(run.episodes, seed=HELD_OUT + run.seed)
    else:
        make, judge = partial(scaled, task.env, task.reward_scale), task.env
    kind = getattr(cadenza, task.algorithm)
    small = {name: n for name, n in SMALL.items() if run.smoke and name in kind.Config.model_fields}
    agent = kind(make, seed=run.seed, **{**task.settings, **small})
    agent.learn(run.steps, callbacks=[Curve(run, agent, task.reward_scale)], progress=False)
    judged = agent.evaluate(run.episodes, env=judge, seed=run.seed)
    return Outcome(
        returns=judged.returns,
        env_steps=agent.steps,
        updates=agent.updates,
        peer_returns=peer_returns(task, run) if sb3 else None,
    )


def peer_returns(task: Task, run: Run) -> tuple[float, ...]:
    """Train Stable-Baselines3's with equal settings; return what the same episodes bring."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    settings = dict(task.settings)
    envs = make_vec_env(task.env, settings.pop("num_envs", 1), seed=run.seed)
    layers = settings.pop("hidden_sizes", getattr(cadenza, task.algorithm).Config().hidden_sizes)
    settings.pop("initial_alpha", None)  # 1 is its default
    if settings.pop("decay_learning_rate", False):
        rate = settings["learning_rate"]
        settings["learning_rate"] = lambda left: rate * left
    model = getattr(stable_baselines3, task.algorithm)(
        "MlpPolicy",
        envs,
        policy_kwargs={"net_arch": list(layers)},
        device="cpu",
        seed=run.seed,
        **{THEIR_NAMES.get(name, name): value for name, value in settings.items()},
    ).learn(run.steps)
    return evaluate_policy(
        lambda observation: model.predict(observation, deterministic=True)[0],
        gymnasium.make(task.env),
        run.episodes,
        seed=run.seed,
    ).returns


if __name__ == "__main__":
    tables = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    parser = command_line("scores")
    parser.add_argument("task", choices=sorted({*tables["scores"], *tables["beside_sb3"]}))
    parser.add_argument("--sb3", action="store_true", help="compare with Stable-Baselines3")
    options = parser.parse_args()
    tasks = tables["beside_sb3" if options.sb3 else "scores"]
    if options.task not in tasks:
        parser.error(f"expected one of {', '.join(tasks)}, got {options.task}")
    task = Task(**tasks[options.task])
    main(
        partial(train, task, options.sb3),
        name=f"{options.task}_beside_sb3" if options.sb3 else options.task,
        steps=task.steps,
        smoke_steps=1_000 if task.env == PUSH else 300,
        episodes=task.episodes,
        options=options,
    )
