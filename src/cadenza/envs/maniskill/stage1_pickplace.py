"""Pick and place beside a partner: the factory; `stage1_env` holds the task itself."""

import math
from typing import Any, Final, Literal, TypeAlias

import gymnasium as gym

from cadenza.core.checks import is_real
from cadenza.core.errors import InputError
from cadenza.envs.inputs import checked_integer
from cadenza.envs.maniskill.conditions import (
    DEFAULT_EPISODE_LENGTH,
    SYNTHESISED_FT_NOISE_SIGMA_N,
    resolve_condition,
)
from cadenza.envs.maniskill.simulator import (
    choose_render_backend,
    construction,
    load_simulator,
    require_parallel,
)
from cadenza.envs.wrappers.stage1 import (
    EgoState,
    Stage1ASStateSynthesizer,
    Stage1AutoResetWrapper,
    Stage1OMChannelFilter,
)

#: ``"upstream"`` mounts the partner facing away from the table, as published numbers have it.
Compat: TypeAlias = Literal["upstream"]

_OWNER: Final = "make_stage1_pickplace_env"


def make_stage1_pickplace_env(
    *,
    condition_id: str,
    episode_length: int = DEFAULT_EPISODE_LENGTH,
    root_seed: int = 0,
    num_envs: int = 1,
    render_mode: str | None = None,
    render_backend: str | None = None,
    force_torque_noise_sigma: float = SYNTHESISED_FT_NOISE_SIGMA_N,
    ego_state: EgoState = "widened",
    partner_accel_capacity: float | None = None,
    compat: Compat | None = None,
) -> gym.Env[Any, Any]:
    """Build the pick-and-place env of one condition; see `stage1_env.Stage1PickPlaceEnv`.

    Args:
        condition_id: One of the four ids of `conditions`.
        episode_length: Steps until truncation, >= 1.
        root_seed: Experiment seed, >= 0.
        num_envs: Scenes stepped as one batch; more than one needs CUDA, and then an env that ends
            starts anew by itself.
        render_mode: None, ``"rgb_array"``, ``"sensors"``, ``"all"`` or ``"human"``.
        render_backend: ``"none"``, ``"cpu"``, ``"gpu"`` or another of ManiSkill's; None reads
            ``CHAMBER_RENDER_BACKEND`` and otherwise renders only if something is to be seen.
        force_torque_noise_sigma: Standard deviation of the noise on the finger forces, N, >= 0.
        ego_state: What the ego's ``state`` holds, see `Stage1ASStateSynthesizer`.
        partner_accel_capacity: Acceleration that the partner's ball never exceeds, m/s^2, >= 0, as
            the safety filter takes it; None takes what its body is credited with. The filter needs
            less than the ego has: two Pandas at full strength are equals.
        compat: ``"upstream"`` turns the partner away from the table.

    Returns:
        The env inside its wrappers; its attributes stay reachable.

    Raises:
        InputError: An argument is out of range, or the condition is unknown.
        ChamberEnvCompatibilityError: ManiSkill is absent or cannot be initialised, or the condition
            needs images where nothing can be rendered.
    """
    condition = resolve_condition(condition_id)
    episode_length = checked_integer(_OWNER, "episode_length", episode_length, low=1)
    root_seed = checked_integer(_OWNER, "root_seed", root_seed, low=0)
    num_envs = checked_integer(_OWNER, "num_envs", num_envs, low=1)
    sigma = force_torque_noise_sigma
    if not (is_real(sigma) and 0.0 <= sigma < math.inf):
        raise InputError(f"{_OWNER}: expected force_torque_noise_sigma >= 0 N, got {sigma!r}.")
    capacity = partner_accel_capacity
    if capacity is not None and not (is_real(capacity) and 0.0 <= capacity < math.inf):
        raise InputError(
            f"{_OWNER}: expected partner_accel_capacity >= 0 m/s^2 or None, got {capacity!r}."
        )
    if compat not in (None, "upstream"):
        raise InputError(f"{_OWNER}: expected compat None or 'upstream', got {compat!r}.")
    load_simulator(_OWNER)
    require_parallel(_OWNER, num_envs)
    images = render_mode is not None or condition.obs_mode != "state_dict"
    backend = choose_render_backend(_OWNER, render_backend, images=images)
    with construction(_OWNER):
        from cadenza.envs.maniskill.stage1_env import Stage1PickPlaceEnv

        inner: Any = Stage1PickPlaceEnv(
            condition,
            episode_length=episode_length,
            root_seed=root_seed,
            force_torque_noise_sigma=float(sigma),
            partner_accel_capacity=capacity,
            partner_faces_away=compat == "upstream",
            num_envs=num_envs,
            render_mode=render_mode,
            render_backend=backend,
            sim_backend="physx_cpu" if num_envs == 1 else "physx_cuda",
        )
    env = Stage1OMChannelFilter(Stage1ASStateSynthesizer(inner, ego_state=ego_state))
    return env if num_envs == 1 else Stage1AutoResetWrapper(env)
