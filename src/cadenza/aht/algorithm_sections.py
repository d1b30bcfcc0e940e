"""Sections of an ego-training configuration that belong to single algorithms, and who reads them.

A section that the chosen algorithm does not read must stay at its defaults: a number without effect
is refused, never ignored.
"""

from typing import Literal

from pydantic import Field

from cadenza.learn.configs import FrozenModel


class PPOSection(FrozenModel):
    """What PPO and MAPPO have beyond the numbers in ``happo``; see `PPOSettings`.

    Attributes:
        value_coefficient: Weight of the value loss, >= 0.
        entropy_coefficient: Weight of the entropy bonus, >= 0.
        max_gradient_norm: Global norm to which gradients are shortened, > 0.
        clip_value: Half-width of the trusted value interval, > 0; None trusts every value.
        value_loss: Squared error, or Huber's.
        normalize_advantages: Per minibatch.
        normalize_observations: Scale observations by their running moments.
        normalize_rewards: Divide rewards by the running spread of the discounted return.
        initial_log_std: First log-deviation of the actions, log of the action's unit.
    """

    value_coefficient: float = Field(default=0.5, ge=0.0)
    entropy_coefficient: float = Field(default=0.0, ge=0.0)
    max_gradient_norm: float = Field(default=0.5, gt=0.0)
    clip_value: float | None = Field(default=None, gt=0.0)
    value_loss: Literal["mse", "huber"] = "mse"
    normalize_advantages: bool = True
    normalize_observations: bool = True
    normalize_rewards: bool = True
    initial_log_std: float = -0.5
