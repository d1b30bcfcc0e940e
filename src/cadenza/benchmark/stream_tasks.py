"""The tasks as streams: ready-made settings of the online data engine.

`stream_config` names environment, partners and expert by import path, so that producers, which are
processes of their own, build them. The stream shows the ego alone: ``obs`` is its state, (D,),
``actions`` what it executed, (A,), after the safety filter.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from cadenza.aht.config import PartnerConfig, SafetyConfig
from cadenza.benchmark.builders import build_partner, require_player
from cadenza.benchmark.stream_experts import EXPERTS, find_expert
from cadenza.benchmark.tasks import OptionValue, TaskSpec, get_task
from cadenza.core.errors import ConfigurationError, ConfigurationTypeError
from cadenza.partners.registry import outside_modules
from cadenza.stream.config import OnlineDataEngineCfg

#: A partner of a stream: a class name, or everything about it.
PartnerChoice = str | PartnerConfig

#: What producers call.
_WORLDS: Final = "cadenza.benchmark.stream_worlds:make_ego_worlds"
_EXPERT: Final = "cadenza.benchmark.stream_experts:make_expert"
#: Fields of the engine that follow from the task.
_GIVEN: Final = ("gym_config", "action_config", "policy", "max_episode_steps", "state_dim")


def _partner(class_name: str, **extra: str) -> PartnerConfig:
    return PartnerConfig(class_name=class_name, extra=extra)


#: Partners of a stream that names none: several kinds, at many speeds. The task's other partners
#: stay strangers, for evaluations.
_PARTNERS: Final[Mapping[str, tuple[PartnerConfig, ...]]] = {
    "crossing": (
        _partner("crossing_goal_seeker", max_speed="0.8", speed_spread="0.75"),
        _partner("crossing_wanderer"),
        _partner("crossing_wanderer", max_speed="0.4", knot_interval="1.0"),
    ),
    "mpe_cooperative_push": (
        _partner("scripted_heuristic"),
        _partner("scripted_heuristic", target_xy="0.5,0.5", gain="2.0"),
        _partner("scripted_heuristic", target_xy="-0.5,0.5", max_speed="0.5"),
        _partner("scripted_heuristic", target_xy="0.5,-0.5"),
        _partner("scripted_heuristic", target_xy="-0.5,-0.5", gain="2.0"),
    ),
}


def stream_partners(task_id: str) -> tuple[PartnerConfig, ...]:
    """Return the partners of a stream of ``task_id`` that names none.

    Raises:
        UnknownNameError: Unknown task.
    """
    task = get_task(task_id)
    return _PARTNERS.get(task_id, (PartnerConfig(class_name=task.seen_partner),))


def stream_config(
    task_id: str,
    *,
    partners: Sequence[PartnerChoice] | None = None,
    expert: str | Mapping[str, Any] | None = None,
    safety: SafetyConfig | None = None,
    noise: float = 0.0,
    options: Mapping[str, OptionValue] | None = None,
    episode_length: int | None = None,
    num_envs: int = 8,
    producers: int = 2,
    seed: int = 0,
    **engine: Any,
) -> OnlineDataEngineCfg:
    """Return the settings of an engine that streams an expert's episodes of a task.

    Args:
        task_id: Registered task that can be stepped as a batch.
        partners: Who may meet the ego, drawn anew for every episode; None as `stream_partners`.
        expert: Name of a scripted ego of the task, see `cadenza.benchmark.stream_experts`; or a
            policy of your own as the engine takes it, ``{"factory": ..., "kwargs": ...}``, called
            with an `EgoVectorEnv`. None takes the task's first one.
        safety: Filter between a scripted ego and the environment; None turns it on, with its
            defaults, where the task supports it.
        noise: Standard deviation of what is added to every action a scripted ego wants, before the
            filter, unit of the action, >= 0; shows clones how to get back.
        options: Further settings of the task, e.g. ``{"num_robots": 3}``.
        episode_length: Steps until truncation; None takes the task's.
        num_envs: Environments of each producer.
        producers: Processes that simulate.
        seed: Root of all random streams.
        engine: Further fields of `OnlineDataEngineCfg`.

    Raises:
        ConfigurationError: Something does not exist or does not fit the task.
        ConfigurationTypeError: A further field is unknown, or follows from the task.
        UnknownNameError: Unknown task, expert or partner.
    """
    task = get_task(task_id)
    if not task.supports_batches:
        raise ConfigurationError(
            f"stream_config: expected a task that can be stepped as a batch, got {task_id!r}."
        )
    _refuse_given(engine)
    length = task.episode_length if episode_length is None else episode_length
    chosen = _partners(task, partners)
    modules = outside_modules(partner["class_name"] for partner in chosen)
    kwargs: dict[str, Any] = {
        "task": task_id,
        "partners": chosen,
        "episode_length": length,
        "root_seed": seed,
        "options": task.complete_options({} if options is None else options),
        "registered": {"task": task.model_dump(mode="json"), "modules": list(modules)},
    }
    return OnlineDataEngineCfg(
        gym_config={
            "factory": _WORLDS,
            "num_envs": num_envs,
            "max_episode_steps": length,
            "kwargs": kwargs,
        },
        policy=_policy(task, expert, safety, noise),
        producers=producers,
        seed=seed,
        **engine,
    )


def _refuse_given(engine: Mapping[str, Any]) -> None:
    """Raise for a field that the engine does not have or that the task determines."""
    known = {entry.name for entry in fields(OnlineDataEngineCfg)} - set(_GIVEN)
    for name in engine:
        if name not in known:
            raise ConfigurationTypeError(
                f"stream_config: expected further fields among {sorted(known)}, got {name!r}; "
                f"{', '.join(_GIVEN)} follow from the task."
            )


def _partners(task: TaskSpec, chosen: Sequence[PartnerChoice] | None) -> list[dict[str, Any]]:
    """Return the fields of every partner, checked."""
    named = stream_partners(task.task_id) if chosen is None else chosen
    if not named:
        raise ConfigurationError(
            f"stream_config: expected at least one partner, got none; task {task.task_id!r} has "
            f"{', '.join(task.partners)}."
        )
    configs = [PartnerConfig(class_name=one) if isinstance(one, str) else one for one in named]
    for config in configs:
        require_player(task, config.class_name)
        build_partner(config)  # refuses unknown and wrong options before a producer starts
    return [config.model_dump(mode="json") for config in configs]


def _policy(
    task: TaskSpec,
    expert: str | Mapping[str, Any] | None,
    safety: SafetyConfig | None,
    noise: float,
) -> dict[str, Any]:
    """Return the engine's policy."""
    if not (math.isfinite(noise) and noise >= 0.0):
        raise ConfigurationError(
            f"stream_config.noise: expected a standard deviation >= 0, got {noise}."
        )
    if isinstance(expert, Mapping):
        if safety is not None or noise:
            raise ConfigurationError(
                "stream_config: expected neither safety nor noise with a policy of your own, got "
                "them; they change scripted egos, yours must do both itself."
            )
        return dict(expert)
    own = [name for name, known in EXPERTS.items() if known.task == task.task_id]
    if expert is None and not own:
        raise ConfigurationError(
            f"stream_config: expected an expert for {task.task_id!r}, which has no scripted ego; "
            "give a policy of your own: expert={'factory': 'module:function'}."
        )
    name = own[0] if expert is None else expert
    if find_expert(name).task != task.task_id:
        raise ConfigurationError(
            f"stream_config: expected an expert of {task.task_id!r} ({', '.join(own) or 'none'}), "
            f"got {name!r}, which plays {find_expert(name).task!r}."
        )
    guard = SafetyConfig(enabled=task.supports_safety) if safety is None else safety
    if guard.enabled and not task.supports_safety:
        raise ConfigurationError(
            f"stream_config: expected safety disabled, got it enabled; task {task.task_id!r} has "
            "no safety filter."
        )
    kwargs = {"expert": name, "safety": guard.model_dump(mode="json"), "noise": noise}
    return {"factory": _EXPERT, "kwargs": kwargs}
