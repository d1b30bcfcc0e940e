"""Bases of settings, and what several algorithms have in common; each adds its own in its file.

Python, YAML and command line read these classes, the only place of defaults and ranges; beside
each, its keywords for type checkers and editors, as agents take them (``**settings:
Unpack[SACSettings]``). A wrong value raises a `ConfigurationError` where a class is called, and is
part of a ``pydantic.ValidationError`` where a whole file is validated.
"""

import warnings
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    Self,
    TypeAlias,
    TypedDict,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from cadenza.core.checks import is_whole, whole_as_int
from cadenza.core.errors import ConfigurationError, nearest_name
from cadenza.core.schedules import CosineAnnealing, LinearSchedule


def _whole(value: object) -> int:
    """Return a whole number as an int: True is none, and neither are 2.0 and "2"."""
    if not is_whole(value):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return int(value)


Count = Annotated[int, BeforeValidator(_whole)]
Width = Annotated[Count, Field(ge=1)]


def _horizon(value: object) -> bool | int:
    """Return a flag, or a number of steps above one."""
    if isinstance(value, bool):
        return value
    if not is_whole(value) or value < 0:
        raise PydanticCustomError("horizon", "Input should be true, false or a number of steps")
    return int(value) if value > 1 else bool(value)


Horizon = Annotated[bool | int, BeforeValidator(_horizon)]
#: What stands between the layers of a perceptron.
Activation: TypeAlias = Literal["relu", "tanh", "elu", "silu", "gelu"]
#: Widths of hidden layers, as a caller writes them.
Widths: TypeAlias = list[int] | tuple[int, ...]


class FrozenModel(BaseModel):
    """Base of settings: immutable, unknown keys refused, NaN and infinity refused.

    Raises:
        ConfigurationError: A setting is unknown or missing, of another type, or out of range.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False
    )

    if not TYPE_CHECKING:  # who know the constructor by its fields

        def __init__(self, **settings: Any) -> None:
            try:
                super().__init__(**settings)
            except ValidationError as error:
                # A list whose items were refused one by one is called too short as well: no news
                told = [
                    _sentence(type(self), dict(entry))
                    for entry in error.errors()
                    if entry["type"] != "too_short" or not entry["input"]
                ]
                raise ConfigurationError("; ".join(told)) from None

        # As BaseModel marks its own: a part of a larger model is validated without this constructor
        __init__.__pydantic_base_init__ = True


#: Names that settings have in Stable-Baselines3, and one everybody knows, with ours: the one that
#: an algorithm has, or what is no setting here. The page for its users says them, too.
ELSEWHERE: Final = {
    "lr": "learning_rate",
    "n_steps": "rollout_length n_step",
    "n_epochs": "epochs",
    "clip_range": "clip_epsilon",
    "ent_coef": "entropy_coefficient initial_alpha",
    "vf_coef": "value_coefficient",
    "max_grad_norm": "max_gradient_norm",
    "normalize_advantage": "normalize_advantages",
    "clip_range_vf": "clip_value",
    "buffer_size": "memory_size",
    "learning_starts": "warmup_steps",
    "train_freq": "train_every",
    "gradient_steps": "updates",
    "policy_kwargs": "hidden_sizes critic_sizes activation",
    "replay_buffer_class": "hindsight",
    "action_noise": "exploration_noise",
    "exploration_fraction": "epsilon_frames",
    "exploration_initial_eps": "epsilon_start",
    "exploration_final_eps": "epsilon_end",
    "target_update_interval": "target_period",
    "n_envs": "num_envs=...",
    "verbose": "learn(progress=...)",
    "tensorboard_log": "learn(log='tensorboard')",
}
#: Settings that not all algorithms have, by those that do.
OWNERS: Final = {
    "SAC, HLGauss, TD3, MBPO, PPO, LIAM, E3T, UPD, CEC, MAPPO, HAPPO and HATD3": "critic_sizes",
    "SAC, HLGauss, TD3, DQN, MBPO and HATD3": "tau warmup_steps train_every",
    "SAC, HLGauss, TD3, DQN, MBPO, PPO, LIAM, UPD, CEC and HATD3": "memory_size",
    "SAC, HLGauss, TD3, DQN, MBPO, DAgger and HATD3": "updates",
    "SAC, HLGauss, TD3, DQN and MBPO": "compile precision hindsight",
    "SAC, HLGauss, TD3 and DQN": "n_step priority_exponent importance_exponent",
    "SAC, HLGauss and MBPO": "initial_alpha max_alpha target_entropy",
    "TD3 and HATD3": "policy_delay target_noise noise_clip exploration_noise",
    "DQN": "action_bins epsilon_start epsilon_end epsilon_frames double huber_delta target_period",
    "DQN, PPO, GRPO, LIAM, E3T, UPD and CEC": "action_masks",
    "MBPO, PPO, GRPO, LIAM, E3T, UPD, CEC, MAPPO and HAPPO": "rollout_length",
    "PPO, GRPO, LIAM, E3T, UPD, CEC, MAPPO and HAPPO": (
        "epochs decay_learning_rate clip_epsilon entropy_coefficient"
    ),
    "PPO, LIAM, E3T, UPD, CEC, MAPPO and HAPPO": "gae_lambda",
    "PPO, GRPO, LIAM, E3T, UPD, CEC and MAPPO": "squash_actions initial_log_std",
    "PPO, LIAM, E3T, UPD, CEC and MAPPO": (
        "clip_value value_loss value_coefficient normalize_advantages normalize_values target_kl"
    ),
    "PPO, GRPO, LIAM, E3T, UPD and CEC": "factored_choices",
    "PPO, LIAM, UPD and CEC": "memory",
    "PPO, LIAM, E3T, UPD and CEC": "sequence_length",
    "MBPO, LIAM and E3T": "model_learning_rate",
    "LIAM": "belief_size freeze_encoder",
    "E3T": "history random_share copy_share",
    "UPD": (
        "candidates copies copy_every uniform_share remembered_scores concentration noise "
        "noise_memory"
    ),
    "CEC": "ranges layouts",
    "GRPO": "group_size kl_coefficient",
}


def _advice(name: str, known: Collection[str]) -> str:
    """Return what to write instead of an unknown setting: the end of a sentence."""
    ours = ELSEWHERE.get(name, name).split()
    if here := [each for each in ours if each in known or not each.isidentifier()]:
        return f"; here it is {', '.join(here)}"
    owners = {each: owner for owner, names in OWNERS.items() for each in names.split()}
    if owner := owners.get(ours[0]):
        have = "have" if " " in owner else "has"
        return f"; only {owner} {have} {'it' if ours[0] == name else ours[0]}"
    near = nearest_name(name, {*known, *owners})
    if near is None:
        return f"; known are {', '.join(sorted(known))}"
    whose = "" if near in known else f" of {owners[near]}"
    return f" (did you mean {near!r}{whose}?)"


def _sentence(model: type[BaseModel], entry: dict[str, Any]) -> str:
    """Return what one entry of a ``ValidationError`` says about ``model``."""
    key = ".".join([model.__name__, *map(str, entry["loc"])])
    if entry["type"] == "extra_forbidden":
        alone = (
            len(entry["loc"]) == 1
        )  # not in a section or schedule, which have fields of their own
        advice = _advice(str(entry["loc"][0]), model.model_fields) if alone else ""
        return f"{key}: unknown setting{advice}"
    if entry["type"] == "missing":
        return f"{key}: expected a value, got none"
    if entry["type"] == "value_error":  # a sentence of ours, which names the setting or its section
        told, loc = entry["msg"].removeprefix("Value error, "), entry["loc"]
        whole = told.partition(":")[0] not in model.model_fields
        return told if (told.startswith(str(loc[-1])) if loc else whole) else f"{key}.{told}"
    if entry["type"] in ("tuple_type", "too_short") and key.endswith("_sizes"):
        widths = "widths, one integer >= 1 per layer, such as (256, 256)"
        return f"{key}: expected {widths}, got {entry['input']!r}"
    expected = entry["msg"].partition(", got")[0].partition(" should ")[2]
    expected = expected.removeprefix("be ").removeprefix("have ").removesuffix(", not 0")
    return f"{key}: expected {expected}, got {entry['input']!r}"


#: Whether settings come from a file: those of earlier versions hold some that change nothing.
_OF_A_FILE: Final = ContextVar("settings come from a file", default=False)


@contextmanager
def settings_of_a_file() -> Generator[None]:
    """Let `refuse_idle_settings` warn inside the block."""
    before = _OF_A_FILE.set(True)
    try:
        yield
    finally:
        _OF_A_FILE.reset(before)


def refuse_idle_settings(
    config: FrozenModel, *names: str, where: str, owner: str | None = None
) -> None:
    """Refuse settings that change nothing ``where`` they are, unless they are the defaults.

    Raises:
        ConfigurationError: One is not; of a file, a warning says so.
    """
    for name in names:
        value, default = getattr(config, name), type(config).model_fields[name].default
        if value == default:
            continue
        key = f"{owner}: {name}" if owner else name
        told = f"{key}: expected {default!r} {where}, got {value!r}"
        if not _OF_A_FILE.get():
            raise ConfigurationError(told)
        warnings.warn(f"{told}; it changes nothing.", UserWarning, stacklevel=2)


class ScheduleConfig(FrozenModel):
    """A setting that changes with the environment steps done; see `cadenza.schedules`.

    It depends on the number of steps alone, so a training in parts goes on exactly.

    Attributes:
        schedule: ``linear``, ``cosine`` (half a wave) or ``step`` (equal jumps).
        start: First value, >= 0.
        end: Value from ``steps`` on, >= 0.
        steps: Environment steps, >= 1; ``1e6`` will do.
        stairs: Jumps of ``step``, >= 1, evenly spaced, the last at ``steps``.
    """

    schedule: Literal["linear", "cosine", "step"]
    start: float = Field(ge=0.0)
    end: float = Field(ge=0.0)
    steps: Annotated[Count, BeforeValidator(whole_as_int)] = Field(ge=1)
    stairs: Count = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _only_steps_have_stairs(self) -> Self:
        if self.schedule != "step" and self.stairs != 1:
            raise ValueError(f"stairs: expected 1 without schedule='step', got {self.stairs}")
        return self

    def __repr__(self) -> str:
        """Return the call of `cadenza.schedules` that makes it."""
        stairs = f", stairs={self.stairs}" if self.schedule == "step" else ""
        return f"{self.schedule}({self.start}, {self.end}, steps={self.steps}{stairs})"

    def at(self, steps: int) -> float:
        """Return the value after ``steps`` environment steps."""
        if steps >= self.steps:
            return self.end
        ends = (self.start, self.end, self.steps)
        if self.schedule == "cosine":
            return CosineAnnealing(*ends).at(steps)
        return LinearSchedule(*ends, self.schedule == "step", self.stairs).at(steps)


def value_at(setting: float | ScheduleConfig, steps: int) -> float:
    """Return the value of a setting after ``steps`` environment steps."""
    return setting.at(steps) if isinstance(setting, ScheduleConfig) else setting


_A_SCHEDULE: Final = "cadenza.schedules.cosine(3e-4, 1e-5, steps=1_000_000)"


def _or_schedule(number: Any) -> BeforeValidator:
    """Return what takes a number of this type, or a schedule as an object or a mapping."""
    numbers: TypeAdapter[float] = TypeAdapter(number)

    def taken(value: object) -> float | ScheduleConfig:
        if isinstance(value, ScheduleConfig | Mapping):
            return ScheduleConfig.model_validate(value)
        try:
            return numbers.validate_python(value)
        except ValidationError as error:
            if error.errors()[0]["type"] not in ("float_type", "float_parsing"):
                raise
            raise PydanticCustomError(
                "schedule", f"Input should be a number or a schedule such as {_A_SCHEDULE}"
            ) from None

    return BeforeValidator(taken)


#: Size of an optimiser's steps, > 0, or its schedule.
Rate = Annotated[
    float | ScheduleConfig, _or_schedule(Annotated[float, Field(gt=0.0, allow_inf_nan=False)])
]
#: Weight of a part of a loss, >= 0, or its schedule.
Weight = Annotated[
    float | ScheduleConfig, _or_schedule(Annotated[float, Field(ge=0.0, allow_inf_nan=False)])
]


class CriticConfig(FrozenModel):
    """What algorithms with critics beside a policy share.

    Attributes:
        critic_sizes: Widths of the critics' hidden layers, at least one; None is ``hidden_sizes``.
    """

    critic_sizes: tuple[Width, ...] | None = Field(default=None, min_length=1)


class CriticSettings(TypedDict, total=False):
    """Keywords of `CriticConfig`."""

    critic_sizes: Widths | None


class OffPolicyConfig(FrozenModel):
    """What all algorithms with a replay memory share.

    Attributes:
        learning_rate: Adam's step size of every network, > 0, or its schedule.
        gamma: Discount per step, in [0, 1].
        tau: Share that target networks move per update, in (0, 1].
        batch_size: Transitions per update, >= 1.
        hidden_sizes: Widths of the hidden layers of every network, at least one.
        activation: What stands between the layers of every network.
        max_gradient_norm: Global norm to which gradients are shortened, > 0.
        memory_size: Most transitions kept, >= 1.
        warmup_steps: Environment steps with random actions before the first update, >= 0.
        train_every: Environment steps between updates, >= 1.
        updates: Updates at a time, >= 1.
        normalize_observations: Scale observations by the running moments of those seen; the memory
            keeps them as they are.
        normalize_rewards: Divide rewards, when they are learned from, by the running spread of the
            discounted return.
    """

    learning_rate: Rate = 3e-4
    gamma: float = Field(default=0.99, ge=0.0, le=1.0)
    tau: float = Field(default=0.005, gt=0.0, le=1.0)
    batch_size: Count = Field(default=256, ge=1)
    hidden_sizes: tuple[Width, ...] = Field(default=(256, 256), min_length=1)
    activation: Activation = "relu"
    max_gradient_norm: float = Field(default=10.0, gt=0.0)
    memory_size: Count = Field(default=100_000, ge=1)
    warmup_steps: Count = Field(default=1_000, ge=0)
    train_every: Count = Field(default=1, ge=1)
    updates: Count = Field(default=1, ge=1)
    normalize_observations: bool = False
    normalize_rewards: bool = False

    @property
    def memory_options(self) -> dict[str, Any]:
        """What a `TransitionMemory` is told."""
        return {}


class OffPolicySettings(TypedDict, total=False):
    """Keywords of `OffPolicyConfig`."""

    learning_rate: float | ScheduleConfig
    gamma: float
    tau: float
    batch_size: int
    hidden_sizes: Widths
    activation: Activation
    max_gradient_norm: float
    memory_size: int
    warmup_steps: int
    train_every: int
    updates: int
    normalize_observations: bool
    normalize_rewards: bool


#: Defaults that the engine's losses and targets have in common with the settings.
SHARED_DEFAULTS: Final = OffPolicyConfig()


class SoloReplayConfig(OffPolicyConfig):
    """What algorithms of one agent with a replay memory share.

    Attributes:
        compile: Compile the updates; needs a C++ compiler.
        precision: ``bf16`` rounds the inputs of large products, where the processor can.
        hindsight: Goals reached later in an episode that each of its transitions is told again
            with, >= 0; see `cadenza.learn.agents.hindsight`.
    """

    compile: bool = False
    precision: Literal["float32", "bf16"] = "float32"
    hindsight: Count = Field(default=0, ge=0)


class SoloReplaySettings(OffPolicySettings, total=False):
    """Keywords of `SoloReplayConfig`."""

    compile: bool
    precision: Literal["float32", "bf16"]
    hindsight: int


class PrioritizedConfig(SoloReplayConfig):
    """What those share that learn from returns of several steps and prefer transitions.

    Attributes:
        n_step: Steps whose rewards a target sums before it asks a critic, >= 1; fewer at the end of
            an episode (arXiv:1710.02298, section 3).
        priority_exponent: How strongly transitions of large errors are preferred, >= 0; 0 draws
            uniformly (arXiv:1511.05952, equation 1).
        importance_exponent: How much of that bias the losses correct, in [0, 1].
    """

    n_step: Count = Field(default=1, ge=1)
    priority_exponent: float = Field(default=0.0, ge=0.0)
    importance_exponent: float = Field(default=0.4, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _only_priorities_are_corrected(self) -> Self:
        if not self.priority_exponent:
            refuse_idle_settings(self, "importance_exponent", where="without priority_exponent")
        return self

    @property
    def memory_options(self) -> dict[str, Any]:
        """What a `TransitionMemory` is told."""
        names = ("n_step", "gamma", "priority_exponent", "importance_exponent")
        return {name: getattr(self, name) for name in names}


class PrioritizedSettings(SoloReplaySettings, total=False):
    """Keywords of `PrioritizedConfig`."""

    n_step: int
    priority_exponent: float
    importance_exponent: float


class OnPolicyConfig(FrozenModel):
    """What all algorithms that learn from their own rollouts share.

    Attributes:
        rollout_length: Steps per environment between updates, >= 1.
        batch_size: Transitions per minibatch, >= 1.
        epochs: Passes over a rollout, >= 1.
        learning_rate: Adam's step size, > 0, or its schedule.
        decay_learning_rate: Lower it linearly to zero: true over the steps that were asked for so
            far, a number over so many environment steps, whichever calls of `learn` take them.
        gamma: Discount per step, in [0, 1].
        clip_epsilon: Half-width of the trusted ratio interval, > 0.
        entropy_coefficient: Weight of the entropy bonus, >= 0, or its schedule.
        hidden_sizes: Widths of the hidden layers of every network.
        normalize_observations: Scale observations by their running moments.
        activation: What stands between the layers of every network.
    """

    rollout_length: Count = Field(default=2048, ge=1)
    batch_size: Count = Field(default=64, ge=1)
    epochs: Count = Field(default=10, ge=1)
    learning_rate: Rate = 3e-4
    decay_learning_rate: Horizon = False
    gamma: float = Field(default=0.99, ge=0.0, le=1.0)
    clip_epsilon: float = Field(default=0.2, gt=0.0)
    entropy_coefficient: Weight = 0.0
    hidden_sizes: tuple[Width, ...] = (64, 64)
    normalize_observations: bool = False
    activation: Activation = "tanh"

    @model_validator(mode="after")
    def _decays_once(self) -> Self:
        if self.decay_learning_rate and isinstance(self.learning_rate, ScheduleConfig):
            raise ValueError(
                "decay_learning_rate: expected False beside a schedule of learning_rate, got "
                f"{self.decay_learning_rate}"
            )
        return self


class OnPolicySettings(TypedDict, total=False):
    """Keywords of `OnPolicyConfig`."""

    rollout_length: int
    batch_size: int
    epochs: int
    learning_rate: float | ScheduleConfig
    decay_learning_rate: bool | int
    gamma: float
    clip_epsilon: float
    entropy_coefficient: float | ScheduleConfig
    hidden_sizes: Widths
    normalize_observations: bool
    activation: Activation


class ActorCriticConfig(OnPolicyConfig, CriticConfig):
    """What on-policy algorithms with a critic share.

    Attributes:
        gae_lambda: Weight of longer advantage estimates, in [0, 1].
        normalize_rewards: Divide rewards by the running spread of the discounted return.
    """

    gae_lambda: float = Field(default=0.95, ge=0.0, le=1.0)
    normalize_rewards: bool = False


class ActorCriticSettings(OnPolicySettings, CriticSettings, total=False):
    """Keywords of `ActorCriticConfig`."""

    gae_lambda: float
    normalize_rewards: bool


class OnPolicyAgentConfig(OnPolicyConfig):
    """What PPO, MAPPO and GRPO share.

    Attributes:
        max_gradient_norm: Global norm to which gradients are shortened, > 0.
        squash_actions: Squash continuous actions into their bounds by tanh and count that in their
            densities, instead of clipping them.
        initial_log_std: First log-deviation of continuous actions.
    """

    max_gradient_norm: float = Field(default=0.5, gt=0.0)
    squash_actions: bool = False
    initial_log_std: float = 0.0


class OnPolicyAgentSettings(OnPolicySettings, total=False):
    """Keywords of `OnPolicyAgentConfig`."""

    max_gradient_norm: float
    squash_actions: bool
    initial_log_std: float


class MaskedConfig(FrozenModel):
    """What algorithms share that can choose among legal actions.

    Attributes:
        action_masks: Choose among legal actions only: ``observation["action_mask"]`` tells them, or
            ``info["action_mask"]`` where observations have no such part.
    """

    action_masks: bool = False


class MaskedSettings(TypedDict, total=False):
    """Keywords of `MaskedConfig`."""

    action_masks: bool


class ChoosingConfig(OnPolicyAgentConfig, MaskedConfig):
    """What PPO and GRPO share.

    Attributes:
        factored_choices: Make each of several choices (MultiDiscrete, MultiBinary) by itself, even
            where there are at most 4 096 combinations: without it, or masks, these are numbered as
            one choice.
    """

    factored_choices: bool = False

    @property
    def factors(self) -> bool:
        """Whether each of several choices is made by itself, however few they are."""
        return self.factored_choices or self.action_masks


class ChoosingSettings(OnPolicyAgentSettings, MaskedSettings, total=False):
    """Keywords of `ChoosingConfig`."""

    factored_choices: bool


#: How training partners are drawn.
SamplerKind: TypeAlias = Literal["uniform", "rank", "maximin", "learnability"]


class SamplerConfig(FrozenModel):
    """How training partners are drawn; a kind alone is enough.

    Attributes:
        kind: See `cadenza.learn.sampling`.
        beta: Exponent of ``rank``.
    """

    kind: SamplerKind = "uniform"
    beta: float = Field(default=3.0, ge=0.0)

    @model_validator(mode="before")
    @classmethod
    def _from_kind(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value
