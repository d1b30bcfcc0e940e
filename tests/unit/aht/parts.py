"""Small deterministic parts for tests of the training loop."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from cadenza.aht.config import EgoAHTConfig


def config_in(folder: Path, **changes: Any) -> EgoAHTConfig:
    """A short run of 40 frames in folders below ``folder``; ``changes`` replace top-level keys."""
    values: dict[str, Any] = {
        "algo": "random",
        "seed": 3,
        "total_frames": 40,
        "checkpoint_every": 16,
        "artifacts_root": folder / "out",
        "log_dir": folder / "out" / "logs",
        "env": {"task": "noisy_point", "episode_length": 7},
        "partner": {"class_name": "noisy"},
        "happo": {"rollout_length": 8},
    }
    return EgoAHTConfig.model_validate({**values, **changes})


class NoisyPointEnv:
    """Point x with x <- x + ego + partner + noise and reward -x; the noise comes from the seed.

    An episode truncates after ``horizon`` steps and terminates when x leaves [-bound, bound].
    """

    def __init__(self, horizon: int = 7, bound: float = 1e9, info: dict[str, Any] | None = None):
        self.horizon = horizon
        self.bound = bound
        self.info = info or {}
        self.reset_seeds: list[int | None] = []
        self.actions: list[float] = []
        self.x = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.reset_seeds.append(seed)
        self._rng = np.random.default_rng(seed)
        self.x = float(self._rng.uniform())
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Mapping[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(float(action["ego"][0]))
        self.x += float(action["ego"][0]) + float(action["partner"][0])
        self.x += float(self._rng.normal())
        self._steps += 1
        terminated = abs(self.x) > self.bound
        truncated = self._steps >= self.horizon
        return self._observation(), -self.x, terminated, truncated, dict(self.info)

    def _observation(self) -> dict[str, Any]:
        state = np.array([self.x], dtype=np.float32)
        return {"agent": {"ego": {"state": state}, "partner": {"state": -state}}}


class NoisyBatchEnv:
    """``num_envs`` copies of `NoisyPointEnv` that reset themselves, copy i with horizon + i."""

    def __init__(self, num_envs: int, horizon: int = 5):
        self.num_envs = num_envs
        self.copies = [NoisyPointEnv(horizon + i) for i in range(num_envs)]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        assert seed is not None
        self._next = [1000 * i + seed for i in range(self.num_envs)]
        return _stack([self._restart(i) for i in range(self.num_envs)]), {}

    def step(self, action: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rows = [
            env.step({uid: values[i] for uid, values in action.items()})
            for i, env in enumerate(self.copies)
        ]
        observations = [row[0] for row in rows]
        done = [row[2] or row[3] for row in rows]
        info: dict[str, Any] = {}
        if any(done):
            info["final_observation"] = _stack(observations)
            observations = [
                self._restart(i) if done[i] else obs for i, obs in enumerate(observations)
            ]
        rewards = np.array([row[1] for row in rows])
        flags = [np.array([row[k] for row in rows]) for k in (2, 3)]
        return _stack(observations), rewards, flags[0], flags[1], info

    def _restart(self, i: int) -> Any:
        self._next[i] += 1
        return self.copies[i].reset(seed=self._next[i])[0]


def _stack(observations: list[Any]) -> dict[str, Any]:
    uids = observations[0]["agent"]
    return {
        "agent": {
            uid: {"state": np.stack([obs["agent"][uid]["state"] for obs in observations])}
            for uid in uids
        }
    }


class NoisyPartner:
    """Draws actions from its own stream, opened by the reset seed; rows restart one by one."""

    def __init__(self, partner_id: str | None = "partner-0001"):
        self.spec = SimpleNamespace(partner_id=partner_id)
        self.reset_seeds: list[int | None] = []
        self.row_resets: list[tuple[int, int]] = []
        self._rows: dict[int, np.random.Generator] = {}

    def reset(self, *, seed: int | None = None) -> None:
        self.reset_seeds.append(seed)
        self._seed = seed
        self._rows = {}

    def reset_row(self, row: int, *, seed: int) -> None:
        self.row_resets.append((row, seed))
        self._rows[row] = np.random.default_rng(seed)

    def act(self, obs: Any, *, deterministic: bool = True) -> Any:
        state = obs["agent"]["partner"]["state"]
        if state.ndim == 1:
            return self._draw(0)
        return np.stack([self._draw(i) for i in range(len(state))])

    def _draw(self, row: int) -> Any:
        if row not in self._rows:
            self._rows[row] = np.random.default_rng((self._seed or 0) + row)
        return self._rows[row].uniform(-0.1, 0.1, 1).astype(np.float32)


class TallyTrainer:
    """Learner whose weight is a running function of everything it saw; it can be saved exactly."""

    def __init__(self, seed: int = 0):
        self._rng = np.random.default_rng(seed)
        self.weight = torch.zeros(1, dtype=torch.float64)
        self.rewards: list[float] = []
        self.flags: list[tuple[Any, Any]] = []
        self.final_obs: list[Any] = []
        self.updates: list[int] = []

    def act(self, obs: Any, *, deterministic: bool = False) -> Any:
        state = obs["agent"]["ego"]["state"]
        if deterministic:
            return np.zeros_like(state)
        noise = self._rng.normal(size=state.shape)
        return (noise + 0.01 * float(self.weight)).astype(np.float32)

    def observe(self, obs, reward, done, *, truncated=False, final_obs=None) -> None:
        self.rewards.append(float(np.sum(reward)))
        self.flags.append((done, truncated))
        self.final_obs.append(final_obs)

    def update(self) -> None:
        self.updates.append(len(self.rewards))
        self.weight = self.weight + sum(self.rewards)
        self.rewards = []

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def training_state(self) -> dict[str, Any]:
        state = self._rng.bit_generator.state["state"]
        return {
            "weight": self.weight,
            "rewards": list(self.rewards),
            "rng": {name: str(value) for name, value in state.items()},
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        self.weight = state["weight"]
        self.rewards = list(state["rewards"])
        full = self._rng.bit_generator.state
        full["state"] = {name: int(value) for name, value in state["rng"].items()}
        self._rng.bit_generator.state = full


class PolicyOnlyTrainer:
    """Learner that can neither learn nor be resumed."""

    def act(self, obs: Any, *, deterministic: bool = False) -> Any:
        return np.zeros_like(obs["agent"]["ego"]["state"])

    def observe(self, obs, reward, done, *, truncated=False, final_obs=None) -> None:
        pass

    def update(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}


@dataclass
class TrainerFactoryOf:
    """Factory that keeps the learners it built, and what it was given."""

    build: Any = TallyTrainer
    built: list[Any] = field(default_factory=list)
    loggers: list[Any] = field(default_factory=list)

    def __call__(self, cfg, *, env, partner, ego_uid, logger=None) -> Any:
        self.loggers.append(logger)
        self.built.append(self.build())
        return self.built[-1]


@dataclass
class HalvingDriver:
    """Filter that halves every action above one; its lambda counts steps and can be saved."""

    env: Any
    cartesian_accel_capacity: float = 2.0
    lambda_bound: float = 1.4
    lambda_: dict[tuple[str, str], float] = field(default_factory=lambda: {("ego", "partner"): 0.0})
    calls: list[Any] = field(default_factory=list)

    def reachable(self, nominal: Any) -> Any:
        return np.clip(nominal, -2.0, 2.0)

    def drives(self, env: Any) -> bool:
        return env is self.env

    def begin_run(self, seed: int) -> None:
        self.calls.append(("run", seed))
        self.lambda_ = {("ego", "partner"): 0.0}

    def begin_episode(self) -> None:
        self.calls.append("episode")

    def step(self, nominal_action: Any, partner_id: str | None = None) -> Any:
        self.calls.append(partner_id)
        assert nominal_action.dtype == np.float64
        action = nominal_action.copy()
        if abs(action[0]) > 1.0:
            action = action / 2.0
        self.lambda_ = {pair: value - 1e-3 for pair, value in self.lambda_.items()}
        return SimpleNamespace(
            action=action,
            info={"fallback_fired": False},
            loss={("ego", "partner"): 0.5},
            braked=False,
            infeasible=False,
            uncertified=False,
            intervention=float(np.abs(action - nominal_action)[0]),
            lambda_=dict(self.lambda_),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"lambda": [[list(pair), value] for pair, value in self.lambda_.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.lambda_ = {tuple(pair): value for pair, value in state["lambda"]}


@dataclass
class HalvingBatchDriver:
    """`HalvingDriver` for a batch; row i starts at lambda -i."""

    env: Any
    num_envs: int = 4
    cartesian_accel_capacity: float = 2.0
    lambda_bound: float = 1.4
    partner_uids: tuple[str, ...] = ("partner",)
    calls: list[Any] = field(default_factory=list)

    def reachable(self, nominal: Any) -> Any:
        return np.clip(nominal, -2.0, 2.0)

    def drives(self, env: Any) -> bool:
        return env is self.env

    def begin_run(self, seed: int) -> None:
        self.calls.append(("run", seed))
        self.lambda_ = -np.arange(float(self.num_envs)).reshape(-1, 1)

    def begin_episode(self) -> None:
        self.calls.append("episode")

    def begin_rows(self, rows: list[int]) -> None:
        self.calls.append(list(rows))

    def step(self, nominal_action: Any, partner_ids: Any = None) -> Any:
        self.calls.append(partner_ids)
        action = nominal_action.astype(np.float64)
        action = np.where(abs(action) > 1.0, action / 2.0, action)
        self.lambda_ = self.lambda_ - 1e-3
        flags = np.zeros(self.num_envs, dtype=bool)
        return SimpleNamespace(
            action=action,
            loss=np.full((self.num_envs, 1), 0.5),
            scored=np.arange(self.num_envs) > 0,
            braked=np.arange(self.num_envs) == 1,
            infeasible=np.arange(self.num_envs) < 2,
            uncertified=flags,
            intervention=abs(action - nominal_action)[:, 0],
            lambda_=self.lambda_.copy(),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"lambda": self.lambda_.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.lambda_ = np.array(state["lambda"])
