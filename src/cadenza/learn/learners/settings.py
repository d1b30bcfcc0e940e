"""Settings of the off-policy learners: the only place where their defaults and ranges stand.

Python, YAML and command line read these classes; a value out of range is a ``ValueError``.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Width = Annotated[int, Field(ge=1)]


class FrozenModel(BaseModel):
    """Base of settings: immutable, unknown keys refused, NaN and infinity refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LearnerNumbers(FrozenModel):
    """What all off-policy learners share.

    Attributes:
        learning_rate: Adam's step size of every network, > 0.
        gamma: Discount per control step, in [0, 1].
        tau: Share that target networks move per update, in (0, 1].
        batch_size: Transitions per update, > 0.
        hidden_sizes: Width of the hidden layers of every network, at least one.
        max_gradient_norm: Global norm to which gradients are shortened, > 0.
        compile: Compile the updates (sac, hlgauss, td3, dqn, mbpo); needs a C++ compiler.
        precision: ``bf16`` rounds the inputs of large products, where the processor can.
    """

    learning_rate: float = Field(default=3e-4, gt=0.0)
    gamma: float = Field(default=0.99, ge=0.0, le=1.0)
    tau: float = Field(default=0.005, gt=0.0, le=1.0)
    batch_size: int = Field(default=256, gt=0)
    hidden_sizes: tuple[Width, ...] = Field(default=(128, 128), min_length=1)
    max_gradient_norm: float = Field(default=10.0, gt=0.0)
    compile: bool = False
    precision: Literal["float32", "bf16"] = "float32"


class SACNumbers(FrozenModel):
    """Temperature of soft actor-critic.

    Attributes:
        initial_alpha: First weight of the entropy, > 0.
        max_alpha: Its cap, >= ``initial_alpha``.
        target_entropy: Nats; None is minus the number of action components.
    """

    initial_alpha: float = Field(default=0.2, gt=0.0)
    max_alpha: float = Field(default=1.0, gt=0.0)
    target_entropy: float | None = None

    @model_validator(mode="after")
    def _alpha_below_its_cap(self) -> Self:
        if not self.initial_alpha <= self.max_alpha:
            raise ValueError(
                f"sac.initial_alpha: expected at most max_alpha ({self.max_alpha}), got "
                f"{self.initial_alpha}."
            )
        return self


class HLGaussNumbers(FrozenModel):
    """Histogram critics.

    Attributes:
        min_value: Lower end of the discounted returns' range.
        max_value: Upper end, > ``min_value``; targets beyond are clipped.
        bins: Bins, >= 2.
        smoothing_ratio: Deviation of the target's Gaussian, in bins, > 0.
    """

    min_value: float = -200.0
    max_value: float = 50.0
    bins: int = Field(default=101, ge=2)
    smoothing_ratio: float = Field(default=0.75, gt=0.0)

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if not self.min_value < self.max_value:
            raise ValueError(
                f"hlgauss.min_value: expected less than max_value ({self.max_value}), got "
                f"{self.min_value}."
            )
        return self


class TD3Numbers(FrozenModel):
    """Delay and noises of TD3 and HATD3.

    Attributes:
        policy_delay: Critic updates per update of policy and targets, >= 1.
        target_noise: Deviation of the noise on target actions in [-1, 1], >= 0.
        noise_clip: Bound of that noise, >= 0.
        exploration_noise: Deviation of the noise on collected actions in [-1, 1], >= 0.
    """

    policy_delay: int = Field(default=2, ge=1)
    target_noise: float = Field(default=0.2, ge=0.0)
    noise_clip: float = Field(default=0.5, ge=0.0)
    exploration_noise: float = Field(default=0.1, ge=0.0)


class DQNNumbers(FrozenModel):
    """Grid, exploration and loss of DQN.

    Attributes:
        action_bins: Values per action component, >= 2.
        epsilon_start: First share of random actions, in [0, 1].
        epsilon_end: Last share, in [0, ``epsilon_start``].
        epsilon_frames: Frames over which it falls linearly, > 0.
        double: Let the online network choose the next action.
        huber_delta: Error above which the loss grows linearly, > 0; None squares.
    """

    action_bins: int = Field(default=5, ge=2)
    epsilon_start: float = Field(default=1.0, ge=0.0, le=1.0)
    epsilon_end: float = Field(default=0.05, ge=0.0, le=1.0)
    epsilon_frames: int = Field(default=20_000, gt=0)
    double: bool = True
    huber_delta: float | None = Field(default=1.0, gt=0.0)

    @model_validator(mode="after")
    def _epsilon_falls(self) -> Self:
        if not self.epsilon_end <= self.epsilon_start:
            raise ValueError(
                f"dqn.epsilon_end: expected at most epsilon_start ({self.epsilon_start}), got "
                f"{self.epsilon_end}."
            )
        return self

    def epsilon(self, frames: int) -> float:
        """Return the share of random actions after ``frames`` frames."""
        share = min(1.0, frames / self.epsilon_frames)
        return self.epsilon_start + share * (self.epsilon_end - self.epsilon_start)


class MBPONumbers(FrozenModel):
    """Model and imagination of MBPO.

    Attributes:
        ensemble_size: Members of the model, >= 1.
        num_elites: Members that predict, in [1, ``ensemble_size``].
        model_hidden: Width of the model's hidden layers, >= 1.
        model_layers: Its hidden layers, >= 1.
        model_learning_rate: Adam's step size of the model, > 0.
        model_updates: Updates of the model before it is first used, >= 1.
        rollout_every: Updates between imaginations, >= 1.
        rollout_states: Real states continued each time, >= 1.
        rollout_length: Steps they are continued for, >= 1.
        imagined_size: Imagined transitions kept, >= ``rollout_states``.
        real_share: Share of real transitions in a batch, in [0, 1].
    """

    ensemble_size: int = Field(default=5, ge=1)
    num_elites: int = Field(default=3, ge=1)
    model_hidden: int = Field(default=128, ge=1)
    model_layers: int = Field(default=3, ge=1)
    model_learning_rate: float = Field(default=1e-3, gt=0.0)
    model_updates: int = Field(default=500, ge=1)
    rollout_every: int = Field(default=50, ge=1)
    rollout_states: int = Field(default=400, ge=1)
    rollout_length: int = Field(default=1, ge=1)
    imagined_size: int = Field(default=20_000, ge=1)
    real_share: float = Field(default=0.25, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if not (
            self.num_elites <= self.ensemble_size and self.rollout_states <= self.imagined_size
        ):
            raise ValueError(
                "mbpo: expected num_elites <= ensemble_size and rollout_states <= imagined_size, "
                f"got {self.num_elites}, {self.ensemble_size}, {self.rollout_states} and "
                f"{self.imagined_size}."
            )
        return self
