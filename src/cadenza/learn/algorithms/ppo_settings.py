"""Numbers of PPO, checked where they are made."""

from dataclasses import dataclass
from typing import Literal

from cadenza.learn.algorithms.setting_checks import (
    refuse_setting,
    require_counts,
    require_finite,
    require_flags,
    require_fractions,
    require_not_negative,
    require_positive,
    require_positive_or_none,
    require_widths,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOSettings:
    """Numbers of PPO; the defaults are those of the paper's continuous-control experiments.

    Attributes:
        rollout_length: Steps per environment between updates, >= 1.
        batch_size: Transitions per minibatch, >= 1; the last takes the remainder.
        epochs: Passes over a rollout, >= 1.
        learning_rate: Adam's step size, > 0.
        decay_learning_rate: Lower it linearly to zero over the run.
        gamma: Discount per step, in [0, 1].
        gae_lambda: Weight of longer advantage estimates, in [0, 1].
        clip_epsilon: Half-width of the trusted ratio interval, > 0.
        clip_value: Half-width of the trusted value interval, > 0; None trusts every value.
        value_loss: Squared error, or Huber's with threshold 10.
        value_coefficient: Weight of the value loss, >= 0.
        entropy_coefficient: Weight of the entropy bonus, >= 0.
        max_gradient_norm: Global norm to which gradients are shortened, > 0.
        normalize_advantages: Per minibatch.
        target_kl: Skip an update's remaining epochs once the mean KL of one exceeds this, > 0; None
            never skips.
        normalize_observations: Scale observations by their running moments.
        normalize_rewards: Divide rewards by the running spread of the discounted return.
        squash_actions: Squash continuous actions into their bounds by tanh and count that in their
            densities, instead of clipping them. `PPO` only.
        hidden_sizes: Width of the hidden layers of actor and critic.
        initial_log_std: First log-deviation of continuous actions.
    """

    rollout_length: int = 2048
    batch_size: int = 64
    epochs: int = 10
    learning_rate: float = 3e-4
    decay_learning_rate: bool = False
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    clip_value: float | None = None
    value_loss: Literal["mse", "huber"] = "mse"
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    max_gradient_norm: float = 0.5
    normalize_advantages: bool = True
    target_kl: float | None = None
    normalize_observations: bool = False
    normalize_rewards: bool = False
    squash_actions: bool = False
    hidden_sizes: tuple[int, ...] = (64, 64)
    initial_log_std: float = 0.0

    def __post_init__(self) -> None:
        """Check everything; NaN fails too."""
        require_counts(self, "rollout_length", "batch_size", "epochs")
        require_flags(self, "decay_learning_rate", "normalize_advantages", "squash_actions")
        require_flags(self, "normalize_observations", "normalize_rewards")
        require_positive(self, "learning_rate", "clip_epsilon", "max_gradient_norm")
        require_positive_or_none(self, "clip_value", "target_kl")
        require_not_negative(self, "value_coefficient", "entropy_coefficient")
        require_fractions(self, "gamma", "gae_lambda")
        require_finite(self, "initial_log_std")
        if self.value_loss not in ("mse", "huber"):
            refuse_setting(self, "value_loss", "'mse' or 'huber'")
        require_widths(self, "hidden_sizes")
