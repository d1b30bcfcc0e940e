"""Numbers of PPO, checked where they are made."""

from dataclasses import dataclass
from typing import Literal

from cadenza.core.errors import ConfigurationError


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
    hidden_sizes: tuple[int, ...] = (64, 64)
    initial_log_std: float = 0.0

    def __post_init__(self) -> None:
        """Check every number; NaN fails too."""
        for name in ("rollout_length", "batch_size", "epochs"):
            if not getattr(self, name) >= 1:
                _refuse(name, ">= 1", getattr(self, name))
        for name in ("learning_rate", "clip_epsilon", "max_gradient_norm"):
            if not getattr(self, name) > 0.0:
                _refuse(name, "> 0", getattr(self, name))
        for name in ("clip_value", "target_kl"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                _refuse(name, "> 0 or None", value)
        for name in ("value_coefficient", "entropy_coefficient"):
            if not getattr(self, name) >= 0.0:
                _refuse(name, ">= 0", getattr(self, name))
        for name in ("gamma", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                _refuse(name, "in [0, 1]", getattr(self, name))
        if self.value_loss not in ("mse", "huber"):
            _refuse("value_loss", "'mse' or 'huber'", self.value_loss)
        if min(self.hidden_sizes, default=1) < 1:
            _refuse("hidden_sizes", "widths >= 1", self.hidden_sizes)


def _refuse(name: str, expected: str, value: object) -> None:
    raise ConfigurationError(f"PPOSettings.{name}: expected {expected}, got {value!r}.")
