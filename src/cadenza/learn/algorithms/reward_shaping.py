"""Adding a bonus to the rewards of a batch, once.

A shaper writes the sum to ``rewards``, keeps the bonus under a key of its own, and signs the batch
with its name: the same shaper on the same batch a second time is an error, not a doubled bonus.
"""

from typing import Any, ClassVar, Final

from torch import Tensor, nn

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin

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


class RewardShaper(LoggingMixin, Callback):
    """Adds a weighted bonus to the rewards of a batch and logs it; a subclass says which.

    Args:
        discriminator: What the bonus comes from.
        weight: Factor on the bonus.
        data_group: Group of the batch.
        name: Name in messages and checkpoints; two shapers of one batch need two names.
    """

    #: First part of the log keys.
    LOG_PREFIX: ClassVar[str]
    #: What the log keys call the bonus.
    BONUS: ClassVar[str]
    #: Where the group keeps the bonus.
    BONUS_KEY: ClassVar[str]

    def __init__(
        self, discriminator: nn.Module, weight: float, *, data_group: str, name: str
    ) -> None:
        super().__init__()
        self.name = name
        self.data_group = data_group
        self._discriminator = discriminator
        self._weight = weight

    def _shaped(
        self,
        bonus: Tensor,
        rewards: Tensor,
        shaped_by: tuple[str, ...],
        task_rewards: Tensor | None,
    ) -> dict[str, Any]:
        """Return what goes into the state; arguments as for `shaped_rewards`, before the weight."""
        written = shaped_rewards(
            self.name,
            rewards=rewards,
            bonus=self._weight * bonus,
            bonus_key=self.BONUS_KEY,
            shaped_by=shaped_by,
            task_rewards=task_rewards,
        )
        prefix = self.LOG_PREFIX
        self.log_scalar(f"{prefix}/unscaled_{self.BONUS}_reward", bonus.mean())
        self.log_scalar(f"{prefix}/task_reward", rewards.mean())
        self.log_scalar(f"{prefix}/scaled_{self.BONUS}_reward", written[self.BONUS_KEY].mean())
        self.log_scalar(f"{prefix}/total_reward", written["rewards"].mean())
        return {self.data_group: written}
