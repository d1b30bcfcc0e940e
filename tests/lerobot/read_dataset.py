"""Reads a dataset with the real LeRobot and writes down what it sees; runs in its environment.

    python read_dataset.py DATASET PLAIN OUTPUT.npz MERGED

OUTPUT gets the arrays of DATASET and, as JSON in ``facts``, everything else; MERGED becomes PLAIN
twice (LeRobot 0.4.4 cannot merge datasets with matrices, not even its own).

    frame/KEY, window/KEY, chosen/KEY   one entry per frame: alone, with its neighbours, and with
                                        its neighbours when only the episodes `CHOSEN` are loaded
    batch/KEY                           the first windows as PyTorch's loader stacks them
"""

import json
import sys
from pathlib import Path

import numpy as np
from lerobot.datasets.dataset_tools import merge_datasets
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from torch.utils.data import DataLoader

#: Episodes of the subset.
CHOSEN = [0, 2]
#: Frames around each that windows have, by feature; cameras have the second.
ACTIONS, IMAGES = (0, 1, 2), (-1, 0)
BATCH_SIZE = 4


def all_frames(dataset: LeRobotDataset, kind: str) -> dict[str, np.ndarray]:
    """Return every array of every frame, stacked."""
    frames = [dataset[i] for i in range(len(dataset))]
    keys = [key for key in frames[0] if key != "task"]
    return {f"{kind}/{key}": np.stack([np.asarray(f[key]) for f in frames]) for key in keys}


def main(root: Path, plain: Path, output: Path, merged: Path) -> None:
    dataset = LeRobotDataset("local/check", root=root)
    steps = {"action": ACTIONS} | dict.fromkeys(dataset.meta.camera_keys, IMAGES)
    offsets = {key: [step / dataset.fps for step in given] for key, given in steps.items()}
    windows = LeRobotDataset("local/check", root=root, delta_timestamps=offsets)
    chosen = LeRobotDataset("local/check", root=root, delta_timestamps=offsets, episodes=CHOSEN)
    arrays = all_frames(dataset, "frame")
    arrays |= all_frames(windows, "window")
    arrays |= all_frames(chosen, "chosen")
    batch = next(iter(DataLoader(windows, batch_size=BATCH_SIZE)))
    arrays |= {f"batch/{key}": np.asarray(batch[key]) for key in steps}
    source = LeRobotDataset("local/plain", root=plain)
    twice = merge_datasets([source, source], output_repo_id="local/twice", output_dir=merged)
    facts = {
        "version": str(dataset.meta.info["codebase_version"]),
        "fps": dataset.fps,
        "length": len(dataset),
        "episodes": [dict(dataset.meta.episodes[i]) for i in range(dataset.num_episodes)],
        "tasks": {task: int(i) for task, i in dataset.meta.tasks["task_index"].items()},
        "frame_tasks": [dataset[i]["task"] for i in range(len(dataset))],
        "cameras": list(dataset.meta.camera_keys),
        "merged": [twice.num_episodes, twice.num_frames, list(twice.meta.tasks.index)],
        "merged_frames": [int(twice[i]["index"]) for i in range(len(twice))],
    }
    np.savez(output, facts=np.array(json.dumps(facts)), **arrays)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
