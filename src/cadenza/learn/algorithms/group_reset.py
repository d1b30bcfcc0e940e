"""Environments that are compared with one another start from the same state, or nothing starts.

Environments g M ... g M + M − 1 form group g. Each gets the seed of its group, and the first
observations within a group must be equal to the bit: a learner that ranks returns within a group
would otherwise credit its actions with a lucky start.

Axes:    N = environments, M = members of a group, G = N / M groups.
Limits:  states that differ without showing it in the first observation pass.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, GroupResetError
from cadenza.core.seeding import derive_substream
from cadenza.learn.algorithms.vector_steps import VectorSteps


def group_seeds(stream: str, *, environments: int, group_size: int, root_seed: int) -> list[int]:
    """Return a seed for every environment, equal within each group.

    Args:
        stream: Name of the random stream; one child per group.
        environments: N.
        group_size: M, >= 1.
        root_seed: Root of the stream.

    Raises:
        ConfigurationError: M does not divide N.
    """
    if environments % group_size:
        raise ConfigurationError(
            f"group_seeds: expected a number of environments that {group_size} (group_size) "
            f"divides, got {environments}; add or remove environments."
        )
    root = derive_substream(stream, root_seed=root_seed)
    seeds = [root.child(group).integer_seed() for group in range(environments // group_size)]
    return [seed for seed in seeds for _ in range(group_size)]


def reset_groups(steps: VectorSteps, seeds: Sequence[int], group_size: int) -> NDArray[Any]:
    """Begin every episode with its own seed; return the first observations, (N, ...).

    Args:
        steps: The environments.
        seeds: One per environment, as `group_seeds` returns them.
        group_size: M.

    Raises:
        GroupResetError: The environments take no seed each, or members of a group differ.
    """
    try:
        observations = steps.reset(seeds)
    except TypeError as error:
        raise GroupResetError(
            "reset_groups: expected a vector environment whose reset takes a list with one seed "
            f"per environment, got {type(steps.envs.unwrapped).__name__}, which refuses it "
            f"({error}); use gymnasium's SyncVectorEnv or AsyncVectorEnv, or give it such a reset."
        ) from error
    require_equal_starts(observations, group_size)
    return observations


def require_equal_starts(observations: NDArray[Any], group_size: int) -> None:
    """Raise unless the observations within each group are equal to the bit.

    Args:
        observations: Shape (N, ...).
        group_size: M; divides N.

    Raises:
        GroupResetError: Two members differ.
    """
    flat = observations.reshape(len(observations) // group_size, group_size, -1)
    differs = (flat != flat[:, :1]).any(axis=-1)  # (G, M)
    if not differs.any():
        return
    group, member = (int(i) for i in np.argwhere(differs)[0])
    distance = np.abs(flat[group, member].astype(np.float64) - flat[group, 0]).max()
    first = group * group_size
    raise GroupResetError(
        f"require_equal_starts: expected environments {first} ... {first + group_size - 1} "
        f"(group {group}) to start from the same state, got first observations of {first} and "
        f"{first + member} that differ by up to {distance:.3g} though both were reset with one "
        "seed; draw the start from that seed only (self.np_random after super().reset(seed=seed)), "
        "and give every member of a ReplayableEnv the number of its group (group=...)."
    )
