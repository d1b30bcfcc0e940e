"""Reads a dataset with the real LeRobot and writes down what it sees; runs in its environment.

    python read_dataset.py DATASET PLAIN OUTPUT.npz MERGED

OUTPUT gets the arrays of DATASET and, as JSON in ``facts``, everything else; MERGED becomes PLAIN
twice (LeRobot 0.4.4 cannot merge datasets with matrices, not even its own).
"""

import json
import sys
from pathlib import Path

import numpy as np
from lerobot.datasets.dataset_tools import merge_datasets
from lerobot.datasets.lerobot_dataset import LeRobotDataset


def main(root: Path, plain: Path, output: Path, merged: Path) -> None:
    dataset = LeRobotDataset("local/check", root=root)
    frames = [dataset[i] for i in range(len(dataset))]
    arrays = {
        f"frame/{key}": np.stack([np.asarray(frame[key]) for frame in frames])
        for key in dataset.features
    }
    for key, statistics in dataset.meta.stats.items():
        arrays |= {f"stats/{key}/{name}": value for name, value in statistics.items()}
    windows = LeRobotDataset("local/check", root=root, delta_timestamps={"action": [0.0, 0.1]})
    arrays["window/action"] = np.stack([np.asarray(windows[i]["action"]) for i in range(5)])
    chosen = LeRobotDataset("local/check", root=root, episodes=[1])
    source = LeRobotDataset("local/plain", root=plain)
    twice = merge_datasets([source, source], output_repo_id="local/twice", output_dir=merged)
    facts = {
        "version": str(dataset.meta.info["codebase_version"]),
        "fps": dataset.fps,
        "length": len(dataset),
        "episodes": [dict(dataset.meta.episodes[i]) for i in range(dataset.num_episodes)],
        "tasks": {task: int(i) for task, i in dataset.meta.tasks["task_index"].items()},
        "frame_tasks": [frame["task"] for frame in frames],
        "cameras": list(dataset.meta.camera_keys),
        "chosen": len(chosen),
        "merged": [twice.num_episodes, twice.num_frames, list(twice.meta.tasks.index)],
        "merged_frames": [int(twice[i]["index"]) for i in range(len(twice))],
    }
    np.savez(output, facts=np.array(json.dumps(facts)), **arrays)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
