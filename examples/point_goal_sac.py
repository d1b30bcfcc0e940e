"""Soft actor-critic with hindsight on a goal that random motion hardly ever meets.

    python examples/point_goal_sac.py --seeds 5
    python examples/point_goal_sac.py --seeds 5 --hindsight 0      # without: it learns nothing

A point mass is pushed about a square, and every step that does not end on the goal costs 1. With
hindsight each transition is learned from four times more, with goals that its episode did reach.
"""

from typing import Any

import gymnasium
import numpy as np
import typer
from gymnasium import spaces
from numpy.typing import NDArray

import cadenza
from cadenza.learn.agents.judging import Evaluation

#: Half the side of the square, and how near the goal counts, m.
HALF, NEAR = 1.0, 0.1
#: Time between two actions, s; largest acceleration, m/s²; loss of speed per step.
DT, FORCE, DRAG = 0.1, 1.0, 0.1


class PointGoal(gymnasium.Env[dict[str, NDArray[np.float32]], NDArray[np.float32]]):
    """A point mass that starts at rest in the middle; make it with a time limit."""

    observation_space: Any = spaces.Dict(
        observation=spaces.Box(-np.inf, np.inf, (4,), np.float32),
        achieved_goal=spaces.Box(-np.inf, np.inf, (2,), np.float32),
        desired_goal=spaces.Box(-np.inf, np.inf, (2,), np.float32),
    )
    action_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
        """Draw a goal anywhere in the square."""
        super().reset(seed=seed, options=options)
        self.position, self.velocity = np.zeros(2), np.zeros(2)
        self.goal = self.np_random.uniform(-HALF, HALF, 2)
        return self._seen(), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[dict[str, NDArray[np.float32]], float, bool, bool, dict[str, Any]]:
        """Push the mass; walls stop it."""
        self.velocity = (1.0 - DRAG) * self.velocity + DT * FORCE * action
        moved = self.position + DT * self.velocity
        self.position = np.clip(moved, -HALF, HALF)
        self.velocity[moved != self.position] = 0.0
        seen = self._seen()
        reward = self.compute_reward(seen["achieved_goal"], seen["desired_goal"], {})
        return seen, reward, False, False, {"is_success": reward == 0.0}

    def compute_reward(
        self, achieved: NDArray[Any], desired: NDArray[Any], info: dict[str, Any]
    ) -> float:
        """Return 0 near the goal, else -1."""
        del info
        return 0.0 if float(np.linalg.norm(achieved - desired)) < NEAR else -1.0

    def _seen(self) -> dict[str, NDArray[np.float32]]:
        state = np.concatenate((self.position, self.velocity)).astype(np.float32)
        return {
            "observation": state,
            "achieved_goal": state[:2].copy(),
            "desired_goal": self.goal.astype(np.float32),
        }


def make() -> gymnasium.Env[Any, Any]:
    """Return the task with episodes of 5 s."""
    return gymnasium.wrappers.TimeLimit(PointGoal(), max_episode_steps=50)


def main(
    seed: int = 0, seeds: int = 1, steps: int = 8_000, episodes: int = 100, hindsight: int = 4
) -> None:
    """Train every seed and count the episodes that its last policy ends on the goal."""
    rates: list[float] = []
    for root in range(seed, seed + seeds):
        agent = cadenza.SAC(
            make,
            seed=root,
            num_envs=4,
            network="mlp",
            hindsight=hindsight,
            hidden_sizes=(64, 64),
            learning_rate=1e-3,
            gamma=0.95,
            tau=0.02,
            train_every=4,
            updates=2,
            warmup_steps=min(1_000, steps // 2),
            memory_size=100_000,
        )
        judged = agent.learn(steps, progress=False).evaluate(episodes, num_envs=10)
        rates.append(100.0 * (judged.success_rate or 0.0))
        print(f"seed {root}: {judged}", flush=True)
    if seeds > 1:
        print(f"success over seeds, %: {Evaluation.of(rates, [])}")


if __name__ == "__main__":
    typer.run(main)
