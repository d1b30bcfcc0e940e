"""Frames of a dataset from what a policy saw and did.

Axes:   a batch of one; images (1, C, H, W) in [0, 1] become (H, W, C) bytes, everything else
        float32 without the batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Begin of the names of images.
_IMAGE = "observation.image"
ACTION = "action"


def tensors_of(observation: Mapping[str, Any]) -> dict[str, NDArray[np.generic]]:
    """Return copies of the observation's tensors, as stored; texts and nested parts are left out.

    Later steps of LeRobot change observations in place, so that views would not do.
    """
    return {
        key: _stored(key, value.detach().cpu().numpy())
        for key, value in observation.items()
        if key.startswith("observation.") and hasattr(value, "detach")
    }


def _stored(key: str, batch: NDArray[Any]) -> NDArray[Any]:
    value = batch[0]
    if key.startswith(_IMAGE):
        pixels = np.rint(np.clip(value, 0.0, 1.0) * 255.0).astype(np.uint8)
        return np.ascontiguousarray(np.moveaxis(pixels, 0, -1))
    return np.array(value, dtype=np.float32)


def features_of(
    observation: Mapping[str, NDArray[Any]], action_shape: tuple[int, ...]
) -> dict[str, dict[str, Any]]:
    """Return the features of a dataset with such observations and actions."""
    features: dict[str, dict[str, Any]] = {}
    for key, value in observation.items():
        image = key.startswith(_IMAGE)
        features[key] = {
            "dtype": "video" if image else "float32",
            "shape": value.shape,
            "names": ["height", "width", "channels"] if image else None,
        }
    features[ACTION] = {"dtype": "float32", "shape": tuple(action_shape), "names": None}
    return features


def episode_frames(
    observations: Sequence[Mapping[str, NDArray[Any]]], actions: NDArray[Any]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the frames of an episode: what was seen, and what was done then."""
    for observation, action in zip(observations, actions, strict=True):
        yield {**observation, ACTION: np.asarray(action, dtype=np.float32)}
