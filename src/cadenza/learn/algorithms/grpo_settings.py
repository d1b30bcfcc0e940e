"""Numbers of GRPO, checked where they are made."""

from dataclasses import dataclass

from cadenza.learn.algorithms.setting_checks import (
    refuse_setting,
    require_counts,
    require_finite,
    require_flags,
    require_fractions,
    require_not_negative,
    require_positive,
    require_widths,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOSettings:
    """Numbers of GRPO.

    Attributes:
        rollout_length: Steps per environment between updates at most, >= 1.
        group_size: Environments whose returns are compared, >= 2; must divide their number.
        reset_every_rollout: Begin every rollout with new episodes, alike within each group. Without
            it only the first one is: later comparisons are between different states.
        truncate_at_first_done: Learn from an environment's first episode of a rollout only, and end
            the rollout as soon as every environment has ended one.
        batch_size: Transitions per minibatch, >= 1; the last takes the remainder.
        epochs: Passes over a rollout, >= 1.
        learning_rate: Adam's step size, > 0.
        decay_learning_rate: Lower it linearly to zero over the run.
        gamma: Discount per step, in [0, 1].
        clip_epsilon: Half-width of the trusted ratio interval, > 0.
        entropy_coefficient: Weight of the entropy bonus, >= 0.
        kl_coefficient: Weight of the divergence from the reference policy, >= 0; 0 keeps none.
        refresh_reference_every: Updates after which the reference policy becomes the current one,
            >= 1; None keeps the first.
        advantage_epsilon: Added to the standard deviation of a group's returns, > 0.
        max_gradient_norm: Global norm to which gradients are shortened, > 0.
        squash_actions: Squash continuous actions into their bounds by tanh and count that in their
            densities, instead of clipping them.
        hidden_sizes: Width of the hidden layers.
        initial_log_std: First log-deviation of continuous actions.
    """

    rollout_length: int = 2048
    group_size: int = 4
    reset_every_rollout: bool = True
    truncate_at_first_done: bool = True
    batch_size: int = 64
    epochs: int = 10
    learning_rate: float = 3e-4
    decay_learning_rate: bool = False
    gamma: float = 0.99
    clip_epsilon: float = 0.2
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.02
    refresh_reference_every: int | None = None
    advantage_epsilon: float = 1e-8
    max_gradient_norm: float = 0.5
    squash_actions: bool = False
    hidden_sizes: tuple[int, ...] = (64, 64)
    initial_log_std: float = 0.0

    def __post_init__(self) -> None:
        """Check everything; NaN fails too."""
        require_counts(self, "rollout_length", "batch_size", "epochs")
        require_counts(self, "group_size", least=2, reason=", for one return alone has no rank")
        require_flags(self, "reset_every_rollout", "truncate_at_first_done", "decay_learning_rate")
        require_flags(self, "squash_actions")
        require_positive(
            self, "learning_rate", "clip_epsilon", "advantage_epsilon", "max_gradient_norm"
        )
        require_not_negative(self, "entropy_coefficient", "kl_coefficient")
        require_fractions(self, "gamma")
        require_finite(self, "initial_log_std")
        if self.refresh_reference_every is not None:
            require_counts(self, "refresh_reference_every", reason=" or None")
            if self.kl_coefficient == 0.0:
                refuse_setting(
                    self,
                    "refresh_reference_every",
                    "None without a reference policy (kl_coefficient = 0)",
                )
        require_widths(self, "hidden_sizes")
