"""Writes a small dataset of a scripted pusher with the real LeRobot; runs in its environment.

    python scripted_pusht.py ROOT EPISODES STEPS SIZE

SIZE 0 writes states alone; otherwise also pictures of SIZE x SIZE pixels.
"""

import sys
from pathlib import Path

import gym_pusht  # noqa: F401 - registers the task
import gymnasium
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

STATES = {
    "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
    "observation.environment_state": {"dtype": "float32", "shape": (16,), "names": None},
    "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
}


def main(root: Path, episodes: int, steps: int, size: int) -> None:
    features = dict(STATES)
    if size:
        names = ["height", "width", "channels"]
        features["observation.image"] = {
            "dtype": "image",
            "shape": (size, size, 3),
            "names": names,
        }
        del features["observation.environment_state"]
    dataset = LeRobotDataset.create(
        "local/demonstrations", 10, features, root, robot_type="pusher", use_videos=False
    )
    env = gymnasium.make("gym_pusht/PushT-v0", obs_type="environment_state_agent_pos")
    for episode in range(episodes):
        seen, _ = env.reset(seed=episode)
        for _ in range(steps):
            middle = seen["environment_state"].reshape(8, 2).mean(axis=0)
            action = seen["agent_pos"] + np.clip(middle - seen["agent_pos"], -30, 30)
            after, reward, *_ = env.step(action)
            frame = {
                "observation.state": seen["agent_pos"].astype(np.float32),
                "action": action.astype(np.float32),
                "next.reward": np.array([reward], np.float32),
                "task": "push the T",
            }
            if size:
                frame["observation.image"] = np.zeros((size, size, 3), np.uint8)
            else:
                frame["observation.environment_state"] = seen["environment_state"].astype(
                    np.float32
                )
            dataset.add_frame(frame)
            seen = after
        dataset.save_episode()
    dataset.finalize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:]))
