"""Episodes of a streamed task, played once more in the scalar environment."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EnvConfig, PartnerConfig
from cadenza.benchmark.builders import build_env, build_partner
from cadenza.benchmark.tasks import get_task

Array = NDArray[Any]


def first_states(task: str, *, root_seed: int, seed: int) -> Array:
    """Return the ego's state at the start of episode ``seed``, (D,)."""
    obs, _ = _env(task, root_seed).reset(seed=seed)
    return obs["agent"]["ego"]["state"]


def play_again(
    task: str, partner: PartnerConfig, *, root_seed: int, seed: int, actions: Array
) -> tuple[Array, Array, bool, bool | None]:
    """Play the ego's ``actions``, (L, A), in episode ``seed`` beside ``partner``.

    Returns:
        The ego's states (L' + 1, D), rewards (L',), whether it terminated, and its success; L' is L
        or where the episode ended.
    """
    env = _env(task, root_seed)
    driver = build_partner(
        partner.model_copy(update={"extra": {**partner.extra, "uid": "partner"}}), env=env
    )
    obs, info = env.reset(seed=seed)
    driver.reset(seed=seed)
    states, rewards = [obs["agent"]["ego"]["state"]], []
    terminated = truncated = False
    for action in actions:
        if terminated or truncated:
            break
        obs, reward, terminated, truncated, info = env.step(
            {"ego": action, "partner": driver.act(obs)}
        )
        states.append(obs["agent"]["ego"]["state"])
        rewards.append(reward)
    return np.array(states), np.array(rewards), terminated, info.get("success")


def _env(task: str, root_seed: int) -> Any:
    length = get_task(task).episode_length
    return build_env(EnvConfig(task=task, episode_length=length), root_seed=root_seed)
