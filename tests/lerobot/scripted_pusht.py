"""Writes small datasets of a scripted pusher with the real LeRobot; runs in its environment.

    python scripted_pusht.py FOLDER EPISODES

FOLDER/demonstrations: successes from states; the first half pushes from one side, the rest from the
    other, so that the first half alone shows half of the task.

Needs `near_goal` in ``PYTHONPATH``.
"""

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from near_pusht import target

POSITION = {"dtype": "float32", "shape": (2,), "names": ["x", "y"]}
REWARD = {"dtype": "float32", "shape": (1,), "names": None}
CORNERS = {"dtype": "float32", "shape": (16,), "names": None}
PLAIN = {"observation.state": POSITION, "action": POSITION, "next.reward": REWARD}
TASK = {"task": "push the T"}
#: Longest demonstration, and spread of its actions, pixels.
STEPS, JITTER = 12, 2.0


def new_dataset(root: Path, features: dict[str, Any]) -> LeRobotDataset:
    return LeRobotDataset.create(
        "local/demonstrations", 10, features, root, robot_type="pusher", use_videos=False
    )


def demonstrate(root: Path, episodes: int) -> None:
    dataset = new_dataset(root, {**PLAIN, "observation.environment_state": CORNERS})
    env = gymnasium.make("gym_pusht/NearPushT-v0", obs_type="environment_state_agent_pos")
    rng = np.random.default_rng(0)
    for episode in range(episodes):
        side = 2 * episode // episodes
        seen, _ = env.reset(seed=episode, options={"side": side})
        solved = False
        for _ in range(STEPS):
            action = (target(side) + rng.normal(0.0, JITTER, 2)).astype(np.float32)
            after, reward, solved, _, _ = env.step(action)
            dataset.add_frame(
                {
                    "observation.state": seen["agent_pos"].astype(np.float32),
                    "observation.environment_state": seen["environment_state"].astype(np.float32),
                    "action": action,
                    "next.reward": np.array([reward], np.float32),
                    **TASK,
                }
            )
            seen = after
            if solved:
                break
        assert solved, f"demonstration {episode} fails"
        dataset.save_episode()
    dataset.finalize()


def main(folder: Path, episodes: int) -> None:
    demonstrate(folder / "demonstrations", episodes)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
