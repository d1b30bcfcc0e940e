"""Small games of two as batched environments, for what trains pairs."""

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode


class PairGame:
    """N copies of a game in which both choose among ``actions`` in every one of ``steps`` steps.

    Both see the step (one-hot) and what everyone chose before (one-hot, 0 at first). The last step
    pays what ``pay`` says of both choices; the others nothing.

    Args:
        copies: N.
        pay: Rewards of choices (N,) and (N,), as (N,).
    """

    agent_uids = ("ego", "partner")
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, copies, pay, *, actions=3, steps=1):
        self.num_envs, self.pay, self.actions, self.steps = copies, pay, actions, steps
        self.stride = copies
        box = spaces.Box(0.0, 1.0, (steps + 2 * actions,), np.float32)
        robots = {uid: spaces.Dict({"state": box}) for uid in self.agent_uids}
        self.single_observation_space = spaces.Dict({"agent": spaces.Dict(robots)})
        self.single_action_space = spaces.Dict(
            {uid: spaces.Discrete(actions) for uid in self.agent_uids}
        )
        self.clock = np.zeros(copies, np.int64)
        self.chosen = np.full((2, copies), -1)

    def reset(self, *, seed=None, options=None):
        self.clock[:], self.chosen[:] = 0, -1
        return self._observe(), {}

    def step(self, actions):
        choices = np.stack([np.asarray(actions[uid]).reshape(-1) for uid in self.agent_uids])
        self.clock += 1
        self.chosen = choices.astype(np.int64)
        over = self.clock == self.steps
        rewards = np.where(over, self.pay(*self.chosen), 0.0)
        info = {}
        if over.any():
            info["final_observation"] = self._observe()
            self.clock[over], self.chosen[:, over] = 0, -1
        return self._observe(), rewards, over, np.zeros_like(over), info

    def snapshot(self, rows):
        return {"clock": self.clock[rows], "chosen": self.chosen[:, rows].T}

    def restore(self, rows, snapshot):
        self.clock[rows], self.chosen[:, rows] = snapshot["clock"], snapshot["chosen"].T
        return self._observe()

    def close(self):
        pass

    def _observe(self):
        clock = np.eye(self.steps, dtype=np.float32)[self.clock % self.steps]
        told = np.eye(self.actions + 1, dtype=np.float32)[self.chosen][..., : self.actions]
        return {
            "agent": {
                uid: {"state": np.concatenate((clock, told[k], told[1 - k]), axis=1)}
                for k, uid in enumerate(self.agent_uids)
            }
        }


def matching(*payoffs):
    """Pay ``payoffs[a]`` where both choose a, else nothing."""

    def pay(first, second):
        return np.where(first == second, np.array(payoffs)[first], 0.0)

    return pay
