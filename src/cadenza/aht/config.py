"""Configuration of an ego-training run: YAML and overrides in, one frozen checked object out.

Hydra composes the file and the ``key=value`` overrides; Pydantic checks types, ranges and names.

Example:
    ``load_config(config_path=shipped_config("train/crossing"), overrides=["seed=7"])``
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, cast

from pydantic import BaseModel, Field, field_validator, model_validator

from cadenza.aht.algorithms import list_algorithms, unknown_algorithm_message
from cadenza.aht.config_models import (
    EXTENSION_KEY,
    EnvConfig,
    EvaluationConfig,
    ExploratoryConfig,
    FrozenModel,
    HAPPOHyperparams,
    PartnerConfig,
    PPOExtrasConfig,
    ResumeConfig,
    RolloutRecorderConfig,
    RuntimeConfig,
    SafetyConfig,
    ShapingConfig,
    TensorboardConfig,
    WandbConfig,
    extension,
)
from cadenza.core.errors import ConfigurationError, ConfigurationTypeError
from cadenza.core.extras import load_extra
from cadenza.core.files import canonical_json
from cadenza.core.yaml_files import read_yaml
from cadenza.learn.configs import (
    DQNConfig,
    HATD3Config,
    HLGaussConfig,
    MBPOConfig,
    PPOConfig,
    SACConfig,
    TD3Config,
)

__all__ = [
    "EgoAHTConfig",
    "EnvConfig",
    "EvaluationConfig",
    "ExploratoryConfig",
    "HAPPOHyperparams",
    "PPOExtrasConfig",
    "PartnerConfig",
    "ResumeConfig",
    "RolloutRecorderConfig",
    "RuntimeConfig",
    "SafetyConfig",
    "ShapingConfig",
    "TensorboardConfig",
    "WandbConfig",
    "config_fingerprint",
    "load_config",
]

#: Where results go does not change them: two runs in different folders share one identity.
_SINK_FIELDS: Final = frozenset({"artifacts_root", "log_dir", "wandb"})
#: Leading bytes of the part of the fingerprint that holds our own fields.
_EXTENSION_HEADER: Final = b"\ncadenza-extensions/1\n"
#: Hex digits of a fingerprint.
_FINGERPRINT_DIGITS: Final = 16

_HAPPO: Final = ("happo", "ppo_extras")
#: Keys that the training loop reads, whatever it trains.
_LOOP: Final = {"happo.rollout_length", "ppo_extras.flush_partial_rollout"}
#: Further sections and keys that each built-in algorithm reads.
_READS: Final[dict[str, tuple[str, ...]]] = {
    "ego_aht_happo": _HAPPO,
    "happo": _HAPPO,
    "ppo": ("ppo",),
    "mappo": ("ppo",),
    "random": (),
    "ego_aht_hatd3": ("hatd3",),
    **{name: (name,) for name in ("sac", "hlgauss", "td3", "hatd3", "dqn", "mbpo")},
}
_SECTIONS: Final = (*_HAPPO, "ppo", "sac", "hlgauss", "td3", "hatd3", "dqn", "mbpo")


class EgoAHTConfig(FrozenModel):
    """Everything that determines one ego-training run.

    Attributes:
        algo: Name in the algorithm registry; also the kind of the run in its provenance.
        seed: Root seed of every random stream of the run, >= 0.
        total_frames: Training budget in environment frames, > 0.
        checkpoint_every: Frames between checkpoints, > 0.
        artifacts_root: Folder that ``local://`` addresses are relative to; a run's files go to the
            folder ``artifacts`` in it.
        log_dir: Folder of the run logs.
        wandb: Weights & Biases sink.
        env: Task.
        partner: Partner trained with.
        happo: Settings of ``happo`` and ``ego_aht_happo``; its ``rollout_length`` also says how
            often algorithms other than PPO and MAPPO report.
        runtime: Device and determinism.
        safety: Safety filter.
        rollout_recorder: Accepted at its defaults only.
        shaping: Accepted at its defaults only.
        exploratory: Accepted at its defaults only.
        ppo_extras: Opt-in departures from the upstream update.
        evaluation: Deterministic evaluation during training.
        resume: What is kept for resuming.
        tensorboard: TensorBoard sink.
        ppo: Settings of ``ppo`` and ``mappo``.
        sac: Settings of ``sac``.
        hlgauss: Settings of ``hlgauss``.
        td3: Settings of ``td3``.
        hatd3: Settings of ``hatd3``.
        dqn: Settings of ``dqn``.
        mbpo: Settings of ``mbpo``.
    """

    algo: str = "ego_aht_happo"
    seed: int = Field(default=0, ge=0)
    total_frames: int = Field(default=100_000, gt=0)
    checkpoint_every: int = Field(default=10_000, gt=0)
    artifacts_root: Path = Path()
    log_dir: Path = Path("./logs")
    wandb: WandbConfig = Field(default_factory=WandbConfig)
    env: EnvConfig
    partner: PartnerConfig = Field(default_factory=PartnerConfig)
    happo: HAPPOHyperparams = Field(default_factory=HAPPOHyperparams)
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    safety: SafetyConfig = Field(default_factory=SafetyConfig)
    rollout_recorder: RolloutRecorderConfig = Field(default_factory=RolloutRecorderConfig)
    shaping: ShapingConfig = Field(default_factory=ShapingConfig)
    exploratory: ExploratoryConfig = Field(default_factory=ExploratoryConfig)
    ppo_extras: PPOExtrasConfig = Field(
        default_factory=PPOExtrasConfig, json_schema_extra=extension()
    )
    evaluation: EvaluationConfig = Field(
        default_factory=EvaluationConfig, json_schema_extra=extension()
    )
    resume: ResumeConfig = Field(default_factory=ResumeConfig, json_schema_extra=extension("sink"))
    tensorboard: TensorboardConfig = Field(
        default_factory=TensorboardConfig, json_schema_extra=extension("sink")
    )

    ppo: PPOConfig = Field(default_factory=PPOConfig, json_schema_extra=extension())
    sac: SACConfig = Field(default_factory=SACConfig, json_schema_extra=extension())
    hlgauss: HLGaussConfig = Field(default_factory=HLGaussConfig, json_schema_extra=extension())
    td3: TD3Config = Field(default_factory=TD3Config, json_schema_extra=extension())
    hatd3: HATD3Config = Field(default_factory=HATD3Config, json_schema_extra=extension())
    dqn: DQNConfig = Field(default_factory=DQNConfig, json_schema_extra=extension())
    mbpo: MBPOConfig = Field(default_factory=MBPOConfig, json_schema_extra=extension())

    @model_validator(mode="after")
    def _no_setting_without_effect(self) -> Self:
        changed = {key for name in _SECTIONS for key in _changes(name, getattr(self, name))}
        reads = _LOOP | set(_READS.get(self.algo, _SECTIONS))
        dead = [key for key in changed if not {key, key.partition(".")[0]} & reads]
        if dead:
            raise ValueError(
                f"algo={self.algo}: expected only settings that it reads, got "
                f"{', '.join(sorted(dead))}; remove them, or choose the algorithm they belong to."
            )
        return self

    @property
    def section(self) -> FrozenModel:
        """Settings of the chosen algorithm; ``happo`` if it is not built in or has none."""
        return getattr(self, (*_READS.get(self.algo, ()), "happo")[0])

    @property
    def rollout_length(self) -> int:
        """Environment iterations between updates, or between reports of other algorithms."""
        own = self.ppo if self.section is self.ppo else self.happo
        return own.rollout_length

    @field_validator("algo")
    @classmethod
    def _known_algorithm(cls, value: str) -> str:
        if value not in list_algorithms():
            raise ValueError(unknown_algorithm_message(value))
        return value


def config_fingerprint(config: EgoAHTConfig) -> str:
    """Return the 16-hex identity of what ``config`` computes.

    The hashed bytes are the compact JSON of the upstream fields in declaration order, without the
    output folders and sinks. Fields of our own are appended, as canonical JSON of those that differ
    from their defaults, only if there is any: a configuration upstream could express keeps its
    upstream fingerprint, and a future field at its default changes none.
    """
    excluded, extensions = _split_extensions(config)
    base = config.model_dump_json(exclude=excluded).encode("utf-8")
    material = base + _EXTENSION_HEADER + canonical_json(extensions) if extensions else base
    return hashlib.sha256(material).hexdigest()[:_FINGERPRINT_DIGITS]


def load_config(*, config_path: Path, overrides: list[str] | None = None) -> EgoAHTConfig:
    """Compose one YAML file with Hydra overrides and check the result.

    A file may hold a mapping ``algorithms`` from names to further settings: those of the chosen
    ``algo`` are taken over the file's, and the overrides over both.

    Args:
        config_path: The YAML file; its folder is Hydra's config folder.
        overrides: Hydra overrides, e.g. ``["seed=7", "+env.options.num_robots=3"]``; a key that
            the file does not mention needs the leading ``+``.

    Raises:
        ConfigurationError: The file is missing, no YAML, or does not end in .yaml; an override is
            malformed.
        MissingExtraError: Hydra is not installed.
        TypeError: The file's root is not a mapping.
        hydra.errors.HydraException: An override names a key the file does not mention.
        pydantic.ValidationError: A value is missing, unknown, out of range or without effect.
    """
    path = config_path.resolve()
    root = read_yaml(config_path)
    if path.suffix != ".yaml":
        raise ConfigurationError(
            f"load_config: expected a file that ends in .yaml, got {config_path}; rename it."
        )
    if not isinstance(root, dict):
        raise ConfigurationTypeError(
            f"load_config: expected a mapping at the root of {config_path}, got "
            f"{'an empty file' if root is None else type(root).__name__}."
        )
    settings = cast("dict[str, Any]", root)
    _check_keys([*settings], overrides or [])
    changes = [*_settings_of_algorithm(settings, overrides or []), *(overrides or [])]
    hydra = load_extra("hydra")
    load_extra("hydra.core.global_hydra").GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(config_dir=str(path.parent), version_base="1.3"):
        composed = hydra.compose(config_name=path.stem, overrides=changes)
    content = load_extra("omegaconf").OmegaConf.to_container(composed, resolve=True)
    return EgoAHTConfig.model_validate(content)


def _settings_of_algorithm(file: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Return overrides that put the file's settings of the chosen algorithm in their place."""
    algorithms = file.get("algorithms")
    if not isinstance(algorithms, dict):
        return []
    named = [text.lstrip("+").partition("=") for text in overrides]
    chosen = [value.strip("'\"") for key, _, value in named if key == "algo"] or [file.get("algo")]
    own = cast("dict[object, Any]", algorithms).get(chosen[-1], {})
    return ["~algorithms", *(f"++{key}={json.dumps(value)}" for key, value in _leaves(own))]


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a nested mapping with its key, dots between its parts."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(cast("dict[str, Any]", value), f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _check_keys(keys: Sequence[object], overrides: Sequence[str]) -> None:
    """Raise for keys that Hydra would take for itself or fail on.

    Raises:
        ConfigurationError: An override has no key or is no text, or a key is one of Hydra's own.
    """
    for override in overrides:
        if not override.lstrip("+~").partition("=")[0].strip():
            raise ConfigurationError(f"override {override!r}: expected key=value, got no key.")
        if override != override.encode("utf-8", errors="replace").decode("utf-8"):
            raise ConfigurationError(
                f"override {override!r}: expected UTF-8 text, got other bytes; set LANG to a UTF-8 "
                "locale or rename the path."
            )
    named = [override.lstrip("+~").partition("=")[0] for override in overrides]
    for name in (*map(str, keys), *named):
        if name.replace("/", ".").replace("@", ".").partition(".")[0] == "hydra":
            raise ConfigurationError(f"{name}: unknown key; the settings of Hydra have no effect.")


def _split_extensions(config: EgoAHTConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the upstream projection leaves out, and our own changed fields by dotted name."""
    excluded: dict[str, Any] = dict.fromkeys(_SINK_FIELDS, True)
    extensions: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        if name in _SINK_FIELDS:
            continue
        value = getattr(config, name)
        kind = _extension_kind(field.json_schema_extra)
        if kind is not None:
            excluded[name] = True
            if kind == "identity":
                extensions.update(_changes(name, value))
        elif isinstance(value, BaseModel):
            inner = _inner_extensions(value)
            if inner:
                excluded[name] = dict.fromkeys(inner, True)
                for inner_name in inner:
                    extensions.update(_changed_field(name, value, inner_name))
    return excluded, extensions


def _inner_extensions(model: BaseModel) -> list[str]:
    """Return the names of the fields of ``model`` that upstream does not have."""
    fields = type(model).model_fields.items()
    return [name for name, field in fields if _extension_kind(field.json_schema_extra) is not None]


def _changes(prefix: str, model: BaseModel) -> dict[str, Any]:
    """Return the fields of ``model`` that differ from their defaults, by dotted name."""
    changed: dict[str, Any] = {}
    for name in type(model).model_fields:
        changed.update(_changed_field(prefix, model, name))
    return changed


def _changed_field(prefix: str, model: BaseModel, name: str) -> dict[str, Any]:
    default = type(model).model_fields[name].get_default(call_default_factory=True)
    value = getattr(model, name)
    return {} if value == default else {f"{prefix}.{name}": value}


def _extension_kind(schema_extra: object) -> str | None:
    if isinstance(schema_extra, dict):
        kind = schema_extra.get(EXTENSION_KEY)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return kind if isinstance(kind, str) else None
    return None
