"""Configuration of an evaluation: YAML in, one frozen checked object and its plan out."""

from pathlib import Path
from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

import cadenza
from cadenza.aht.config_models import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.builders import build_partner, code_digest, require_player
from cadenza.benchmark.cells import (
    NAME_PATTERN,
    ConditionEntry,
    EvaluationPlan,
    PartnerEntry,
    PolicyEntry,
)
from cadenza.benchmark.ego_link import LinkConfig
from cadenza.benchmark.executor import FailurePolicy
from cadenza.benchmark.policies import policy_weights_sha256
from cadenza.benchmark.tasks import OptionValue, TaskSpec, get_task
from cadenza.core.errors import ConfigurationError
from cadenza.core.near_names import did_you_mean
from cadenza.core.yaml_files import read_yaml
from cadenza.evaluation.schema_types import MIN_RESAMPLES
from cadenza.evaluation.summary import SummarySettings
from cadenza.partners.registry import list_registered
from cadenza.partners.weights import weights_digest
from cadenza.partners.zoo_member import ZOO_MEMBER

_Name = Annotated[str, Field(pattern=NAME_PATTERN)]
#: Episodes per cell: a few seconds of work, so that little is lost and the pool stays busy.
DEFAULT_BLOCK_SIZE: Final = 20


def _named(*keys: str) -> BeforeValidator:
    """Accept a bare string where a mapping with the value of ``keys`` is meant."""

    def expand(value: object) -> object:
        return dict.fromkeys(keys, value) if isinstance(value, str) else value

    return BeforeValidator(expand)


class _ConfigModel(BaseModel):
    """Immutable, unknown keys and non-finite numbers refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PolicyChoice(_ConfigModel):
    """An ego policy.

    Attributes:
        name: How results call it.
        source: Built-in name (``zero``, ``random``, ``goal_pd``) or ``local://`` address.
    """

    name: _Name
    source: str = Field(min_length=1)


class PartnerChoice(_ConfigModel):
    """A partner.

    Attributes:
        name: How results call it.
        class_name: Name in the partner registry.
        seed: Seed of its own training; 0 for scripted partners.
        checkpoint_step: Training step of its weights.
        weights_uri: ``local://`` address of its weights.
        extra: Its options, text to text.
        seen: Whether the evaluated ego trained with it.
    """

    name: _Name
    class_name: str
    seed: int = 0
    checkpoint_step: int | None = None
    weights_uri: str | None = None
    extra: dict[str, str] = Field(default_factory=dict[str, str])
    seen: bool = False


class ConditionChoice(_ConfigModel):
    """A condition.

    Attributes:
        name: How results call it.
        safety: Settings of the safety filter; by default it is off.
        link: What the ego hears of the other robots; the bare name of a preset is enough. By
            default it sees where they are.
    """

    name: _Name
    safety: SafetyConfig = Field(default_factory=SafetyConfig)
    link: Annotated[LinkConfig, _named("profile")] | None = None


class EvaluationConfig(_ConfigModel):
    """Everything that determines one evaluation.

    Attributes:
        task: Registered task.
        task_version: Its version; by default the latest.
        condition_id: The one of the task's conditions; by default the usual one.
        episode_length: Control steps until truncation; by default the task's.
        agent_uids: Names of ego and partner seat.
        options: Further settings of the task's environment.
        policies: Ego policies; a bare built-in name is enough.
        partners: Partners; a bare class name is enough; by default the task's.
        conditions: Conditions; by default with and without the filter.
        seeds: Evaluation seeds, the clusters of the statistics.
        episodes_per_seed: Episodes per policy, condition, partner and seed.
        block_size: Episodes per cell, the unit of resuming.
        failure_policy: ``strict`` stops at the first failed cell, ``best_effort`` goes on and
            records the failure in the bundle.
        cell_timeout_s: Seconds after which a worker that still runs one cell counts as lost; by
            default none does. Needs two workers or more.
        n_resamples: 0 for Student-t intervals on seed means, else bootstrap replicates.
        bootstrap_root_seed: Root seed of those replicates.
        artifacts_root: Folder that ``local://`` addresses are relative to. Partners load theirs
            from the folder of `cadenza.partners.weights`, and refuse other bytes than those here.
    """

    task: str
    task_version: int | None = None
    condition_id: str | None = None
    episode_length: int | None = Field(default=None, gt=0)
    agent_uids: tuple[str, str] = ("ego", "partner")
    options: dict[str, OptionValue] = Field(default_factory=dict[str, OptionValue])
    policies: tuple[Annotated[PolicyChoice, _named("name", "source")], ...] = Field(min_length=1)
    partners: tuple[Annotated[PartnerChoice, _named("name", "class_name")], ...] | None = None
    conditions: tuple[ConditionChoice, ...] = Field(
        default=(
            ConditionChoice(name="filter_on", safety=SafetyConfig(enabled=True)),
            ConditionChoice(name="filter_off"),
        ),
        min_length=1,
    )
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    episodes_per_seed: int = Field(default=20, gt=0)
    block_size: int = Field(default=DEFAULT_BLOCK_SIZE, gt=0)
    failure_policy: FailurePolicy = "strict"
    cell_timeout_s: float | None = Field(default=None, gt=0.0)
    n_resamples: int = Field(default=0, ge=0)
    bootstrap_root_seed: int = Field(default=0, ge=0)
    artifacts_root: Path = Path()


def load_evaluation_config(path: Path) -> EvaluationConfig:
    """Return the configuration in the YAML file ``path``.

    Raises:
        ConfigurationError: The file is missing or not a YAML mapping.
        pydantic.ValidationError: A value is missing, unknown or out of range.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path}: expected a YAML mapping, got {type(content).__name__}.")
    return EvaluationConfig.model_validate(cast("dict[str, Any]", content))


def make_plan(config: EvaluationConfig) -> EvaluationPlan:
    """Return the plan of ``config``; reads the digests of all weights.

    Raises:
        CheckpointError: Weights are missing or damaged.
        ConfigurationError: Something in the configuration does not exist or does not fit.
        UnknownNameError: Unknown task, policy or partner.
    """
    task = get_task(config.task, config.task_version)
    _check_fit(config, task)
    root = config.artifacts_root
    partners = tuple(_partner_entry(partner, config) for partner in _partners(config))
    try:
        return EvaluationPlan(
            task_version=task.version,
            env=EnvConfig(
                task=config.task,
                condition_id=config.condition_id,
                episode_length=config.episode_length or task.episode_length,
                agent_uids=config.agent_uids,
                options=dict(task.complete_options(config.options)),
            ),
            policies=tuple(
                PolicyEntry(
                    name=policy.name,
                    source=policy.source,
                    weights_sha256=policy_weights_sha256(
                        policy.source, artifacts_root=root, task=config.task
                    ),
                )
                for policy in config.policies
            ),
            partners=partners,
            conditions=tuple(
                ConditionEntry(name=condition.name, safety=condition.safety, link=condition.link)
                for condition in config.conditions
            ),
            seeds=config.seeds,
            episodes_per_seed=config.episodes_per_seed,
            block_size=config.block_size,
            code_sha256=code_digest(task, (entry.partner.class_name for entry in partners)),
            package_version=cadenza.__version__,
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        what = first["msg"].removeprefix("Value error, ").removesuffix(".")
        raise ConfigurationError(f"evaluation: {where}{what}.") from error


def summary_settings(config: EvaluationConfig) -> SummarySettings:
    """Return what the bundle's summary compares.

    Conditions with links are compared with the first condition, if it has the same filter;
    otherwise filtered with unfiltered, where both exist.
    """
    first, *others = config.conditions
    filtered = [c.name for c in config.conditions if c.safety.enabled]
    unfiltered = [c.name for c in config.conditions if not c.safety.enabled]
    comparison = (filtered[0], unfiltered[0]) if filtered and unfiltered else None
    linked = tuple(c.name for c in others if c.link is not None and c.safety == first.safety)
    if linked:
        comparison = (*linked, first.name)
    return SummarySettings(
        n_resamples=config.n_resamples,
        bootstrap_root_seed=config.bootstrap_root_seed,
        headline_condition=(filtered or unfiltered)[0],
        comparison=comparison,
    )


def _partners(config: EvaluationConfig) -> tuple[PartnerChoice, ...]:
    if config.partners is not None:
        return config.partners
    task = get_task(config.task, config.task_version)
    return tuple(
        PartnerChoice(name=name, class_name=name, seen=name == task.seen_partner)
        for name in task.partners
    )


def _partner_entry(choice: PartnerChoice, config: EvaluationConfig) -> PartnerEntry:
    digest, extra = None, {"uid": config.agent_uids[1], **choice.extra}
    if choice.class_name == ZOO_MEMBER:  # reads relative to its own option
        extra.setdefault("root", str(config.artifacts_root))
    if choice.weights_uri is not None:
        root = Path(extra.get("root", config.artifacts_root))
        digest = weights_digest(choice.weights_uri, artifacts_root=root)
    partner = PartnerConfig(
        class_name=choice.class_name,
        seed=choice.seed,
        checkpoint_step=choice.checkpoint_step,
        weights_uri=choice.weights_uri,
        extra=extra,
    )
    build_partner(partner)  # refuses unknown and wrong options before anything is written
    return PartnerEntry(name=choice.name, partner=partner, seen=choice.seen, weights_sha256=digest)


def _check_fit(config: EvaluationConfig, task: TaskSpec) -> None:
    """Raise unless partners, conditions and intervals exist for ``task``."""
    known = list_registered()
    for partner in _partners(config):
        _require(
            partner.class_name in known,
            f"partners: expected class_name among {', '.join(known)}, got {partner.class_name!r}"
            f"{did_you_mean(partner.class_name, known)}",
        )
        require_player(task, partner.class_name)
    if any(condition.safety.enabled for condition in config.conditions):
        _require(task.supports_safety, f"task {task.task_id!r} has no safety filter; turn it off")
    if any(condition.link is not None for condition in config.conditions):
        _require(task.supports_links, f"task {task.task_id!r} has no links; drop them")
    if config.n_resamples != 0:
        enough = config.n_resamples >= MIN_RESAMPLES
        _require(enough, f"n_resamples must be 0 or >= {MIN_RESAMPLES}, got {config.n_resamples}")


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ConfigurationError(f"evaluation: {problem}.")
