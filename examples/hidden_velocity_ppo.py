"""PPO with and without a memory on a pole whose velocities are hidden.

    python examples/hidden_velocity_ppo.py --seeds 5

CartPole-v1 shows position and angle only, so that one observation does not tell which way the pole
falls. Both agents have the same settings but for the memory; the mean return of 20 greedy episodes
of the last policy is printed for every seed, then the means over the seeds.
"""

import gymnasium as gym
import numpy as np
import typer
from gymnasium.wrappers import TransformObservation

import cadenza
from cadenza.learn.agents.judging import Evaluation

SEEN = [0, 2]  # position (m) and angle (rad)
SETTINGS = {
    "num_envs": 8,
    "rollout_length": 64,
    "batch_size": 256,
    "learning_rate": 1e-3,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "hidden_sizes": (64,),
    "decay_learning_rate": True,
}
MEMORIES = {
    "none": {},
    "GRU": {"memory": "gru", "memory_size": 32, "sequence_length": 16},
}


def make_env() -> gym.Env:
    """Return CartPole without velocities."""
    env = gym.make("CartPole-v1")
    box = env.observation_space
    shown = gym.spaces.Box(box.low[SEEN], box.high[SEEN], dtype=np.float32)
    return TransformObservation(env, lambda observation: observation[SEEN], shown)


def main(seeds: int = 5, steps: int = 60_000) -> None:
    """Train both, and compare."""
    for name, memory in MEMORIES.items():
        means = []
        for seed in range(seeds):
            agent = cadenza.PPO(make_env, seed=seed, **SETTINGS, **memory)
            means.append(agent.learn(steps, progress=False).evaluate(20).mean)
            print(f"memory {name}, seed {seed}: {means[-1]:.1f}", flush=True)
        print(f"memory {name}: {Evaluation.of(means, [1] * seeds)}", flush=True)


if __name__ == "__main__":
    typer.run(main)
