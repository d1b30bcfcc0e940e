"""What the real LeRobot sees in a dataset, and what it should see."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.bridges.lerobot_features import Feature

#: Constants of `read_dataset`, which only LeRobot's environment can import.
CHOSEN = (0, 2)
WINDOWS = {"number": (0, 1, 2), "image": (-1, 0)}
BATCH_SIZE = 4


@dataclass(frozen=True)
class Seen:
    """What `read_dataset` wrote down."""

    arrays: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]


def read_with_lerobot(dataset: Path, plain: Path, folder: Path) -> Seen:
    """Return what LeRobot sees, with everything that it writes in ``folder``."""
    program = Path(__file__).with_name("read_dataset.py")
    arguments = [dataset, plain, folder / "seen.npz", folder / "merged"]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "home"),
        "HF_LEROBOT_HOME": str(folder / "datasets"),
    }
    environment.pop("PYTHONPATH", None)
    python = os.environ["CADENZA_LEROBOT_PYTHON"]
    finished = subprocess.run(
        [python, str(program), *map(str, arguments)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    with np.load(folder / "seen.npz", allow_pickle=False) as file:
        arrays = dict(file)
    return Seen(arrays, json.loads(str(arrays.pop("facts"))))


def pixels(seen: np.ndarray) -> np.ndarray:
    """Return images (..., 3, H, W) from 0 to 1, as LeRobot gives them, as bytes (..., H, W, 3)."""
    return np.round(np.moveaxis(seen, -3, -1) * 255).astype(np.uint8)


def assert_frames(seen: Seen, features: Sequence[Feature], episodes: Sequence[Episode]) -> None:
    """Check every feature of every frame, bit for bit."""
    for feature in features:
        expected = np.concatenate([feature.values(episode) for episode in episodes])
        found = seen.arrays[f"frame/{feature.key}"]
        found = pixels(found) if feature.dtype == "image" else found
        np.testing.assert_array_equal(found.reshape(expected.shape), expected, feature.key)


def assert_windows(seen: Seen, features: Sequence[Feature], episodes: Sequence[Episode]) -> None:
    """Check actions and images with their neighbours, which end where their episode does."""
    chosen = [episodes[i] for i in CHOSEN]
    for feature in features:
        if feature.key != "action" and feature.dtype != "image":
            continue
        steps = np.array(WINDOWS["image" if feature.dtype == "image" else "number"])
        for kind, those in {"window": episodes, "chosen": chosen}.items():
            found = seen.arrays[f"{kind}/{feature.key}"]
            found = pixels(found) if feature.dtype == "image" else found
            values, padded = [], []
            for episode in those:
                at = np.arange(episode.length)[:, None] + steps  # (L, window)
                inside = np.clip(at, 0, episode.length - 1)  # the nearest frame repeats
                values.append(feature.values(episode)[inside])
                padded.append(at != inside)
            expected = np.concatenate(values)  # a number per frame has no axis of its own there
            found = found.reshape(expected.shape)
            np.testing.assert_array_equal(found, expected, f"{kind}/{feature.key}")
            is_pad = seen.arrays[f"{kind}/{feature.key}_is_pad"]
            np.testing.assert_array_equal(is_pad, np.concatenate(padded))
        stacked, window = seen.arrays[f"batch/{feature.key}"], seen.arrays[f"window/{feature.key}"]
        np.testing.assert_array_equal(stacked, window[:BATCH_SIZE])
    numbers = np.concatenate([np.full(episodes[i].length, i) for i in CHOSEN])
    np.testing.assert_array_equal(seen.arrays["chosen/episode_index"], numbers)
