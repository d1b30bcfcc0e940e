"""Adding a bonus to the rewards of a batch, once.

A shaper writes the sum to ``rewards``, keeps the bonus under a key of its own, and signs the batch
with its name: the same shaper on the same batch a second time is an error, not a doubled bonus.
"""

from typing import Any, Final

from torch import Tensor

from cadenza.core.errors import ConfigurationError, InputError

#: Key of the names of the shapers that a batch has seen.
SHAPED_BY: Final = "shaped_by"


def shaped_rewards(
    name: str,
    *,
    rewards: Tensor,
    bonus: Tensor,
    bonus_key: str,
    shaped_by: tuple[str, ...],
    task_rewards: Tensor | None,
) -> dict[str, Any]:
    """Return what a shaper writes into the group of the batch.

    Args:
        name: Name of the shaper.
        rewards: Rewards so far, shape (B, 1).
        bonus: What is added, same shape.
        bonus_key: Where the bonus is kept.
        shaped_by: Names of the shapers that were here before.
        task_rewards: Rewards before the first shaper, if there was one before.

    Returns:
        ``rewards`` (the sum), ``task_rewards``, ``bonus_key`` and `SHAPED_BY`.

    Raises:
        ConfigurationError: This shaper has been here before.
        InputError: The shapes differ.
    """
    if name in shaped_by:
        raise ConfigurationError(
            f"{name}: expected rewards without its bonus, got a batch that was shaped by "
            f"{list(shaped_by)}; list each shaper once, give two of a kind different names, and "
            "let the loader make a new batch every step."
        )
    if rewards.shape != bonus.shape:
        raise InputError(
            f"{name}: expected one bonus per reward, got shapes {tuple(bonus.shape)} and "
            f"{tuple(rewards.shape)}; check rollout_length and the memory table."
        )
    return {
        "rewards": rewards + bonus,
        "task_rewards": rewards if task_rewards is None else task_rewards,
        bonus_key: bonus,
        SHAPED_BY: (*shaped_by, name),
    }
