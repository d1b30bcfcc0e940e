"""Batches for tests of the batched driver, each beside scalar environments in the same state."""

import numpy as np

from cadenza.envs.crossing import CrossingEnv, VectorCrossingEnv
from cadenza.safety.batched.driver import BatchedSafetyDriver
from cadenza.safety.runtime.driver import SafetyDriver
from cadenza.safety.runtime.options import SafetyOptions


class Twins:
    """A batch with its driver, and as many scalar environments with one driver each.

    Everybody executes the batched driver's actions, so all scenes stay equal to the bit.
    """

    def __init__(self, num_envs, num_robots=2, *, seed=0, episode_length=200, **options):
        self.settings = {"num_robots": num_robots, "episode_length": episode_length}
        self.batch = VectorCrossingEnv(num_envs, **self.settings)
        self.batch.reset(seed=seed)
        chosen = SafetyOptions(**options)
        self.driver = BatchedSafetyDriver.from_env(self.batch, ego_uid="ego", options=chosen)
        self.driver.begin_run(0)
        self.seeds = [seed + row for row in range(num_envs)]
        self.envs = [CrossingEnv(**self.settings) for _ in range(num_envs)]
        self.drivers = []
        for env, row_seed in zip(self.envs, self.seeds, strict=True):
            env.reset(seed=row_seed)
            self.drivers.append(SafetyDriver.from_env(env, ego_uid="ego", options=chosen))
            self.drivers[-1].begin_run(0)
            self.drivers[-1].begin_episode()
        self.rng = np.random.default_rng(seed)
        self.ended = 0

    def nominal(self):
        """The ego heads for its goal or, in every third environment, for its partner."""
        agents = self.batch.build_agent_batch()
        target = self.batch.goal_positions()["ego"].copy()
        target[::3] = agents.positions[::3, 1]
        noise = self.rng.normal(scale=0.3, size=target.shape)
        return (2.0 * (target - agents.positions[:, 0]) + noise).astype(np.float32)

    def partner_actions(self):
        """Partners chase the ego."""
        agents = self.batch.build_agent_batch()
        return {
            uid: (agents.positions[:, 0] - agents.positions[:, index]).astype(np.float32)
            for index, uid in enumerate(agents.uids)
            if uid != "ego"
        }

    def step(self, partner_ids=None):
        """Return the batched step and the scalar ones, then advance every environment."""
        nominal = self.nominal()
        batched = self.driver.step(nominal, partner_ids)
        ids = partner_ids if isinstance(partner_ids, list) else [partner_ids] * len(self.envs)
        scalar = [
            driver.step(nominal[row].astype(np.float64), partner_id=ids[row])
            for row, driver in enumerate(self.drivers)
        ]
        self.advance(batched.action.astype(np.float32))
        return batched, scalar

    def advance(self, actions):
        """Execute the ego actions everywhere; begin new episodes where one ended."""
        partners = self.partner_actions()
        _, _, terminated, truncated, _ = self.batch.step({"ego": actions, **partners})
        ended = np.flatnonzero(terminated | truncated).tolist()
        for row, env in enumerate(self.envs):
            action = {uid: values[row] for uid, values in partners.items()}
            env.step({"ego": actions[row], **action})
        for row in ended:
            self.seeds[row] += len(self.envs)
            self.envs[row].reset(seed=self.seeds[row])
            self.drivers[row].begin_episode()
        self.driver.begin_rows(ended)
        self.ended += len(ended)
