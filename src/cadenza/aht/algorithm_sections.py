"""Sections of an ego-training configuration that belong to single algorithms, and who reads them.

A section that the chosen algorithm does not read must stay at its defaults: a number without effect
is refused, never ignored.
"""

from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from cadenza.learn.learners.settings import FrozenModel, LearnerNumbers


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


class ReplaySection(LearnerNumbers):
    """How off-policy algorithms collect, replay and step.

    Attributes:
        memory_size: Most transitions kept, > 0.
        warmup_frames: Frames with random actions before the first update, >= 0.
        train_every_frames: Frames between updates, > 0.
        updates: Updates at a time, > 0.
    """

    memory_size: int = Field(default=100_000, gt=0)
    warmup_frames: int = Field(default=1_000, ge=0)
    train_every_frames: int = Field(default=1, gt=0)
    updates: int = Field(default=1, gt=0)


#: Sections that each built-in algorithm reads.
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
