"""Sections of an ego-training configuration that belong to single algorithms, and who reads them.

A section that the chosen algorithm does not read must stay at its defaults: a number without effect
is refused, never ignored.
"""

from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pydantic import BaseModel, Field, model_validator

from cadenza.aht.config_models import FrozenModel

if TYPE_CHECKING:
    from cadenza.learn.learners.dqn import DQNNumbers
    from cadenza.learn.learners.mbpo import MBPONumbers
    from cadenza.learn.learners.replay_learner import LearnerNumbers
    from cadenza.learn.learners.sac import HLGaussNumbers, SACNumbers
    from cadenza.learn.learners.td3 import TD3Numbers


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


class ReplaySection(FrozenModel):
    """How off-policy algorithms collect, replay and step.

    Attributes:
        memory_size: Most transitions kept, > 0.
        warmup_frames: Frames with random actions before the first update, >= 0.
        train_every_frames: Frames between updates, > 0.
        updates: Updates at a time, > 0.
        learning_rate: Adam's step size of every network, > 0.
        gamma: Discount per control step, in [0, 1].
        tau: Share that target networks move per update, in (0, 1].
        batch_size: Transitions per update, > 0.
        hidden_sizes: Width of the hidden layers of every network.
        max_gradient_norm: Global norm to which gradients are shortened, > 0.
        compile: Compile the updates (sac, hlgauss, td3, dqn, mbpo); needs a C++ compiler.
        precision: ``bf16`` rounds the inputs of large products, where the processor can.
    """

    memory_size: int = Field(default=100_000, gt=0)
    warmup_frames: int = Field(default=1_000, ge=0)
    train_every_frames: int = Field(default=1, gt=0)
    updates: int = Field(default=1, gt=0)
    learning_rate: float = Field(default=3e-4, gt=0.0)
    gamma: float = Field(default=0.99, ge=0.0, le=1.0)
    tau: float = Field(default=0.005, gt=0.0, le=1.0)
    batch_size: int = Field(default=256, gt=0)
    hidden_sizes: tuple[int, ...] = (128, 128)
    max_gradient_norm: float = Field(default=10.0, gt=0.0)
    compile: bool = False
    precision: Literal["float32", "bf16"] = "float32"

    def numbers(self) -> "LearnerNumbers":
        """Return the numbers of the updates as the learners take them."""
        from cadenza.learn.learners.replay_learner import LearnerNumbers

        own = {"memory_size", "warmup_frames", "train_every_frames", "updates"}
        return LearnerNumbers(**self.model_dump(exclude=own))


class SACSection(FrozenModel):
    """Temperature of soft actor-critic; see `cadenza.learn.learners.sac.SACNumbers`.

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

    def numbers(self) -> "SACNumbers":
        """Return the section as the learner takes it."""
        from cadenza.learn.learners.sac import SACNumbers

        return SACNumbers(**self.model_dump())


class HLGaussSection(FrozenModel):
    """Histogram critics; see `cadenza.learn.learners.sac.HLGaussNumbers`.

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

    def numbers(self) -> "HLGaussNumbers":
        """Return the section as the learner takes it."""
        from cadenza.learn.learners.sac import HLGaussNumbers

        return HLGaussNumbers(**self.model_dump())


class TD3Section(FrozenModel):
    """Delay and noises of TD3 and HATD3; see `cadenza.learn.learners.td3.TD3Numbers`.

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

    def numbers(self) -> "TD3Numbers":
        """Return the section as the learner takes it."""
        from cadenza.learn.learners.td3 import TD3Numbers

        return TD3Numbers(**self.model_dump())


class DQNSection(FrozenModel):
    """Grid, exploration and loss of DQN; see `cadenza.learn.learners.dqn.DQNNumbers`.

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

    def numbers(self) -> "DQNNumbers":
        """Return the section as the learner takes it."""
        from cadenza.learn.learners.dqn import DQNNumbers

        return DQNNumbers(**self.model_dump())


class MBPOSection(FrozenModel):
    """Model and imagination of MBPO; see `cadenza.learn.learners.mbpo.MBPONumbers`.

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
                "got "
                f"{self.num_elites}, {self.ensemble_size}, {self.rollout_states} and "
                f"{self.imagined_size}."
            )
        return self

    def numbers(self) -> "MBPONumbers":
        """Return the section as the learner takes it."""
        from cadenza.learn.learners.mbpo import MBPONumbers

        return MBPONumbers(**self.model_dump())


#: Sections above that each built-in algorithm reads.
_READS: Final[dict[str, frozenset[str]]] = {
    "ego_aht_happo": frozenset(),
    "happo": frozenset(),
    "random": frozenset(),
    "ppo": frozenset({"ppo"}),
    "mappo": frozenset({"ppo"}),
    "sac": frozenset({"replay", "sac"}),
    "hlgauss": frozenset({"replay", "sac", "hlgauss"}),
    "td3": frozenset({"replay", "td3"}),
    "hatd3": frozenset({"replay", "td3"}),
    "ego_aht_hatd3": frozenset({"replay", "td3"}),
    "dqn": frozenset({"replay", "dqn"}),
    "mbpo": frozenset({"replay", "sac", "mbpo"}),
}
_SECTIONS: Final = ("ppo", "replay", "sac", "hlgauss", "td3", "dqn", "mbpo")
#: The one number of ``happo`` that every algorithm uses: how often the run log is written.
_SHARED_HAPPO: Final = frozenset({"rollout_length"})
#: What of ``ppo_extras`` PPO and MAPPO take.
_SHARED_EXTRAS: Final = frozenset({"flush_partial_rollout", "lr_decay", "target_kl"})


def dead_settings(algorithm: str, sections: dict[str, BaseModel]) -> list[str]:
    """Return the settings, as ``section.key``, that ``algorithm`` does not read but that were set.

    Args:
        algorithm: Value of ``algo``; of one that is not built in nothing is known.
        sections: Sections of the configuration by name, ``happo`` and ``ppo_extras`` included.
    """
    reads = _READS.get(algorithm)
    if reads is None:
        return []
    dead: list[str] = []
    for name in _SECTIONS:
        if name not in reads:
            dead += _changed(name, sections[name])
    if "replay" in reads:
        dead += _changed("happo", sections["happo"], _SHARED_HAPPO)
        dead += _changed("ppo_extras", sections["ppo_extras"])
    elif "ppo" in reads:
        dead += _changed("ppo_extras", sections["ppo_extras"], _SHARED_EXTRAS)
    return dead


def _changed(name: str, section: BaseModel, allowed: frozenset[str] = frozenset()) -> list[str]:
    """Return ``name.key`` of every field that differs from its default and is not ``allowed``."""
    fields: dict[str, Any] = dict(type(section).model_fields)
    return [
        f"{name}.{key}"
        for key, field in fields.items()
        if key not in allowed and getattr(section, key) != field.default
    ]
