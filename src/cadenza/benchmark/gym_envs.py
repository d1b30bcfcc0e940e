"""A task as a plain Gymnasium environment: the ego's seat, everybody else frozen."""

from typing import Any

from cadenza.aht.config_models import EnvConfig, PartnerConfig
from cadenza.benchmark.builders import build_env, build_partner
from cadenza.benchmark.tasks import get_task
from cadenza.envs.adapters import EgoGymEnv


def ego_env(
    task: str,
    *,
    partner: str | None = None,
    condition_id: str | None = None,
    episode_length: int | None = None,
    root_seed: int = 0,
    render_mode: str | None = None,
    **options: Any,
) -> EgoGymEnv:
    """Return the ego's seat of a task; what ``gym.make("cadenza/Crossing-v1", ...)`` calls.

    Args:
        task: Name of the task.
        partner: Class of the partner; None takes the one that training uses.
        condition_id: The one of the task's conditions; None takes the usual one.
        episode_length: Control steps until truncation; None takes the task's.
        root_seed: Experiment seed that scopes every episode.
        render_mode: None or ``"rgb_array"``.
        **options: Options of the task, e.g. ``num_robots``.

    Raises:
        ConfigurationError: Unknown task, option or render mode, or a partner of other tasks.
        UnknownNameError: The partner is not registered.
    """
    spec = get_task(task)
    config = EnvConfig(
        task=task,
        condition_id=condition_id,
        episode_length=episode_length or spec.episode_length,
        options=options,
    )
    player = PartnerConfig(class_name=partner or spec.seen_partner)
    env = build_env(config, root_seed=root_seed, render_mode=render_mode, partner=player)
    return EgoGymEnv(env, build_partner(player, env=env))
