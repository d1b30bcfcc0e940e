"""A task as a plain Gymnasium environment: the ego's seat, everybody else frozen."""

from collections.abc import Mapping
from typing import Any

from cadenza.aht.config_models import EnvConfig, PartnerConfig
from cadenza.benchmark.builders import build_env, build_partner
from cadenza.benchmark.tasks import get_task
from cadenza.envs.adapters import EgoGymEnv


def ego_env(
    task: str = "",
    *,
    partner: str | None = None,
    partner_options: Mapping[str, str] | None = None,
    agent_uids: tuple[str, str] = ("ego", "partner"),
    condition_id: str | None = None,
    episode_length: int | None = None,
    root_seed: int = 0,
    render_mode: str | None = None,
    **options: Any,
) -> EgoGymEnv:
    """Return the ego's seat of a task; what ``gym.make("cadenza/Crossing-v1", ...)`` calls.

    Args:
        task: Name of the task, also ``pettingzoo:module:env``.
        partner: Registered name of the partner inside; None takes the one that training uses.
        partner_options: Options of the partner.
        agent_uids: Names of the seats, the ego's first.
        condition_id: The one of the task's conditions; None takes the usual one.
        episode_length: Control steps until truncation; None takes the task's.
        root_seed: Experiment seed that scopes every episode.
        render_mode: None or ``"rgb_array"``.
        **options: Options of the task, e.g. ``num_robots``; those of a PettingZoo environment are
            the keywords of its constructor.

    Raises:
        ConfigurationError: Unknown task, option or render mode, or a partner of other tasks.
        UnknownNameError: The partner is not registered.
    """
    spec = get_task(task)
    config = EnvConfig(
        task=task,
        condition_id=condition_id,
        episode_length=episode_length or spec.episode_length,
        agent_uids=agent_uids,
        options=options,
    )
    player = PartnerConfig(
        class_name=partner or spec.seen_partner, extra=dict(partner_options or {})
    )
    env = build_env(config, root_seed=root_seed, render_mode=render_mode, partner=player)
    seated = player.model_copy(update={"extra": {"uid": env.agent_uids[1], **player.extra}})
    return EgoGymEnv(env, build_partner(seated, env=env))
