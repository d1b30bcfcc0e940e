"""Observations of agents as values that a checkpoint can hold, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cadenza.core.types import AgentId, DictObservation, EpisodeState, MetaData


def observations_state(observations: Mapping[AgentId, DictObservation]) -> list[dict[str, Any]]:
    """Return observations as tensors, numbers and strings; their order is kept."""
    return [
        {
            "agent": agent,
            "rewards": dict(seen.rewards),
            "episode_state": seen.episode_state.name,
            "array_data": {
                key: torch.as_tensor(np.array(value)) for key, value in seen.array_data.items()
            },
            "metadata": None
            if seen.metadata is None
            else {
                "info": dict(seen.metadata.info),
                "info_lists": {k: list(v) for k, v in seen.metadata.info_lists.items()},
            },
        }
        for agent, seen in observations.items()
    ]


def observations_from_state(state: Sequence[Mapping[str, Any]]) -> dict[AgentId, DictObservation]:
    """Return what `observations_state` was given."""
    return {
        int(entry["agent"]): DictObservation(
            dict(entry["rewards"]),
            EpisodeState[entry["episode_state"]],
            {key: value.numpy().copy() for key, value in entry["array_data"].items()},
            None if entry["metadata"] is None else MetaData(**entry["metadata"]),
        )
        for entry in state
    }
