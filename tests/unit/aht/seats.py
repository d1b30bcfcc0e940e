"""Seats of an ego and a partner without a simulator, and steps that the test makes up."""

import numpy as np
from gymnasium import spaces

LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)


class Seats:
    """Spaces of two seats, ego state 3 wide, partner state 2 wide, for N environments."""

    def __init__(self, num_envs=1, high=HIGH):
        def box(low, top):
            low, top = np.asarray(low, np.float32), np.asarray(top, np.float32)
            if num_envs > 1:
                low, top = (np.repeat(x[None], num_envs, axis=0) for x in (low, top))
            return spaces.Box(low, top, dtype=np.float32)

        self.observation_space = {
            "agent": {
                "ego": {"state": box([-9] * 3, [9] * 3)},
                "partner": {"state": box([-9] * 2, [9] * 2)},
            }
        }
        self.action_space = {"ego": box(LOW, high), "partner": box([-1], [1])}


class Frozen:
    """A partner without parameters."""


def observation(rng, num_envs=1):
    lead = (num_envs,) if num_envs > 1 else ()
    return {
        "agent": {
            "ego": {"state": rng.uniform(-1, 1, (*lead, 3)).astype(np.float32)},
            "partner": {"state": rng.uniform(-1, 1, (*lead, 2)).astype(np.float32)},
        }
    }


def drive(learner, rng, steps, num_envs=1, start=0, every=8):
    """Episodes of four steps, every other one ends by itself; an update ``every`` so many."""
    actions = []
    obs = observation(rng, num_envs)
    for t in range(start, start + steps):
        actions.append(learner.act(obs))
        obs = observation(rng, num_envs)
        done, cut = t % 4 == 3, t % 8 == 7
        reward = float(np.sum(actions[-1]))
        if num_envs > 1:
            reward, done, cut = (np.full(num_envs, value) for value in (reward, done, cut))
        learner.observe(
            obs,
            reward,
            done,
            truncated=cut,
            final_obs=observation(rng, num_envs) if t % 4 == 3 else None,
        )
        if (t + 1) % every == 0:
            learner.update()
    return np.array(actions)
