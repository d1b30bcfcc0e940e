"""A small task, a partner and configurations for the tests of the ego learner."""

import numpy as np
from gymnasium import spaces

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.ego_ppo import EgoPPOTrainer

OBSERVATION_DIM = 5
ACTION_DIM = 3


class StillPartner:
    """A partner without parameters."""

    spec = None

    def reset(self, *, seed=None):
        pass

    def act(self, obs, *, deterministic=True):
        return np.zeros(ACTION_DIM, dtype=np.float32)


class SpacesOnlyEnv:
    """Carries the spaces of a task whose transitions the test makes up."""

    def __init__(self, *, num_envs=None, observation=None, action=None):
        batch = () if num_envs is None else (num_envs,)
        state = observation or spaces.Box(-np.inf, np.inf, (*batch, OBSERVATION_DIM), np.float32)
        command = action or spaces.Box(-1.0, 1.0, (*batch, ACTION_DIM), np.float32)
        self.observation_space = spaces.Dict(
            {"agent": spaces.Dict({"ego": spaces.Dict({"state": state})})}
        )
        self.action_space = spaces.Dict({"ego": command})


def config(*, seed=0, total_frames=1000, num_envs=None, extras=None, runtime=None, **happo):
    settings = {"rollout_length": 12, "batch_size": 5, "n_epochs": 2, "hidden_dim": 8, "lr": 0.01}
    return EgoAHTConfig(
        seed=seed,
        total_frames=total_frames,
        env={"task": "mpe_cooperative_push", "num_envs": num_envs or 1},
        happo=settings | happo,
        ppo_extras=extras or {},
        runtime={"device": "cpu"} | (runtime or {}),
    )


def trainer(*, logger=None, num_envs=None, partner=None, **settings):
    return EgoPPOTrainer.from_config(
        config(num_envs=num_envs, **settings),
        env=SpacesOnlyEnv(num_envs=num_envs),
        partner=partner or StillPartner(),
        ego_uid="ego",
        logger=logger,
    )


def observation(state):
    return {"agent": {"ego": {"state": state}}}


class MadeUpTask:
    """Deterministic transitions from a seed, with terminations and time limits mixed in."""

    def __init__(self, seed, num_envs=None):
        self.rng = np.random.default_rng(seed)
        self.batch = () if num_envs is None else (num_envs,)

    def state(self):
        return self.rng.normal(size=(*self.batch, OBSERVATION_DIM)).astype(np.float32)

    def step(self, action):
        """Return (next state, reward, terminated, truncated, state before the reset)."""
        reward = self.rng.normal(size=self.batch) - np.square(action).sum(-1)
        terminated = self.rng.random(self.batch) < 0.15
        truncated = self.rng.random(self.batch) < 0.2
        return self.state(), reward, terminated, truncated, self.state()


def advance(learner, task, state, steps):
    """Run ``steps`` of act and observe; return the actions and the next state."""
    actions = []
    for _ in range(steps):
        action = learner.act(observation(state))
        actions.append(action)
        state, reward, terminated, truncated, final = task.step(action)
        tell(learner, state, reward, terminated, truncated, final)
    return np.array(actions), state


def tell(learner, state, reward, terminated, truncated, final):
    """Let the learner see what a step of the task returned."""
    ends = {"truncated": truncated, "terminated": terminated, "final_obs": observation(final)}
    learner.observe(observation(state), reward, terminated | truncated, **ends)


def weights(learner):
    payload = learner.state_dict()
    return {
        f"{part}.{name}": value.clone()
        for part in ("actor", "critic")
        for name, value in payload[part].items()
    }
