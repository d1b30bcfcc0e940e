"""Pick and place beside a partner: wrappers and factory.

`stage1_conditions` has the four conditions, `stage1_env` the task. The wrappers give the ego its
flat state and its senses, and reset a batch by themselves.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import gymnasium as gym
import numpy as np

from cadenza.core.checks import is_real, whole_number
from cadenza.core.errors import InputError
from cadenza.envs.inputs import ObservationLayoutError
from cadenza.envs.maniskill.simulator import (
    choose_render_backend,
    construction,
    load_simulator,
    require_parallel,
)
from cadenza.envs.maniskill.stage1_conditions import (
    DEFAULT_EPISODE_LENGTH,
    FETCH_CARTESIAN_ACCEL_CAPACITY_MS2,
    FETCH_SAFETY_RADIUS_M,
    OM_HOMO,
    PANDA_CARTESIAN_ACCEL_CAPACITY_MS2,
    PANDA_SAFETY_RADIUS_M,
    SYNTHESISED_FT_NOISE_SIGMA_N,
    ConditionConfig,
    build_control_models_for_condition,
    resolve_condition,
)
from cadenza.envs.spaces import sub_spaces
from cadenza.envs.wrappers import (
    ForwardingWrapper,
    ObservationWrapper,
    Path,
    as_array,
    channel_box,
    channel_value,
    concatenated,
    joined_space,
    observation_entries,
    zeroed,
)

__all__ = [
    "DEFAULT_EPISODE_LENGTH",
    "FETCH_CARTESIAN_ACCEL_CAPACITY_MS2",
    "FETCH_SAFETY_RADIUS_M",
    "PANDA_CARTESIAN_ACCEL_CAPACITY_MS2",
    "PANDA_SAFETY_RADIUS_M",
    "SYNTHESISED_FT_NOISE_SIGMA_N",
    "TASK_FIELDS",
    "VISION_ONLY_FIELDS",
    "Compat",
    "ConditionConfig",
    "EgoState",
    "Stage1ASStateSynthesizer",
    "Stage1AutoResetWrapper",
    "Stage1OMChannelFilter",
    "build_control_models_for_condition",
    "copied",
    "make_stage1_pickplace_env",
    "resolve_condition",
]

#: What the ego's ``state`` holds: everything it needs, or its own joints alone.
EgoState: TypeAlias = Literal["widened", "proprio"]
#: What of ``obs["extra"]`` a widened state holds, with the length of each.
TASK_FIELDS: Final = {"cube_pose": 7, "goal_pos": 3, "tcp_pose": 7}
#: What of ``obs["extra"]`` an ego that only sees keeps: where its hand is and where to go.
VISION_ONLY_FIELDS: Final = frozenset({"tcp_pose", "goal_pos"})


class Stage1ASStateSynthesizer(ObservationWrapper):
    """Add ``obs["agent"][uid]["state"]``, float32, in the conditions that vary the partner's body.

    Every robot's state is its ``qpos`` and ``qvel``. A widened ego state goes on with the partner's
    ``qpos`` and ``qvel``, ``cube_pose`` (7), ``goal_pos`` (3) and ``tcp_pose`` (7): 53 numbers
    beside a Panda, 65 beside a Fetch. One env gives (D,), N > 1 envs (N, D). Other conditions, and
    envs without a known one, pass unchanged.
    """

    def __init__(self, env: gym.Env[Any, Any], *, ego_state: EgoState = "widened") -> None:
        """Wrap ``env``.

        Args:
            env: Env with a ``condition_id``.
            ego_state: ``"widened"``, or ``"proprio"`` for the ego's own joints alone.

        Raises:
            ObservationLayoutError: The observation space is no Dict, or lacks what a state is made
                of; the message names the entry.
            InputError: ``ego_state`` is neither of the two.
        """
        entries = observation_entries("Stage1ASStateSynthesizer", env)
        super().__init__(env)
        if ego_state not in get_args(EgoState):
            raise InputError(
                f"Stage1ASStateSynthesizer: expected ego_state to be one of {get_args(EgoState)}, "
                f"got {ego_state!r}."
            )
        self._parts: dict[str, tuple[Path, ...]] = {}
        condition = _condition_of(env)
        if condition is None or condition.is_om_condition:
            return
        robots = sub_spaces(entries.get("agent"))
        if robots is None:
            raise ObservationLayoutError(
                "Stage1ASStateSynthesizer: expected a Dict 'agent' in the observation space, got "
                f"{sorted(entries)}."
            )
        ego, partner = condition.agent_uids
        self._parts = {uid: _joints(uid) for uid in {**robots, ego: None, partner: None}}
        if ego_state == "widened":
            fields = tuple(("extra", name) for name in TASK_FIELDS)
            self._parts[ego] = (*_joints(ego), *_joints(partner), *fields)
        for uid, parts in self._parts.items():
            space = joined_space([self._box(path) for path in parts])
            robots[uid] = gym.spaces.Dict({**(sub_spaces(robots[uid]) or {}), "state": space})
        self.observation_space = gym.spaces.Dict({**entries, "agent": gym.spaces.Dict(robots)})

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return ``observation`` with states; the argument itself does not change.

        Raises:
            ObservationLayoutError: A channel is missing or of another rank, or batch sizes differ.
        """
        if not self._parts:
            return observation
        owner = "Stage1ASStateSynthesizer"
        robots: dict[str, Any] = dict(observation["agent"]) if "agent" in observation else {}
        for uid, parts in self._parts.items():
            values = [channel_value(owner, observation, path) for path in parts]
            robots[uid] = {**robots[uid], "state": concatenated(owner, values)}
        return {**observation, "agent": robots}

    def _box(self, path: Path) -> gym.spaces.Box[Any]:
        """Return the space of one part of a state."""
        owner = "Stage1ASStateSynthesizer"
        box = channel_box(owner, self.env.observation_space, path)
        expected = TASK_FIELDS.get(path[1]) if path[0] == "extra" else None
        if expected not in (None, box.shape[-1]):
            raise ObservationLayoutError(
                f"{owner}: expected {'.'.join(path)!r} to have {expected} entries, got {box.shape}."
            )
        return box


class Stage1OMChannelFilter(ObservationWrapper):
    """Blank what the ego does not sense in the condition of the env.

    With vision only, every channel of every robot reads zero, and so does ``obs["extra"]`` but for
    ``tcp_pose`` and ``goal_pos``; images stay. Shapes, dtypes and devices stay, too. Every other
    condition passes unchanged.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap ``env``, whose condition is read now and once.

        Raises:
            ObservationLayoutError: The observation space is no Dict.
        """
        observation_entries("Stage1OMChannelFilter", env)
        super().__init__(env)
        condition = _condition_of(env)
        self._condition_id = _condition_id_of(env)
        self._blind = condition is not None and condition.condition_id == OM_HOMO

    @property
    def condition_id(self) -> str | None:
        """Id of the env's condition; None if it has none."""
        return self._condition_id

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return ``observation`` without what is not sensed; the argument does not change."""
        if not self._blind:
            return observation
        shown = dict(observation)
        if "agent" in shown:
            shown["agent"] = zeroed("obs.agent", shown["agent"])
        if isinstance(shown.get("extra"), Mapping):
            shown["extra"] = {
                name: value if name in VISION_ONLY_FIELDS else zeroed(f"obs.extra.{name}", value)
                for name, value in cast("Mapping[str, Any]", shown["extra"]).items()
            }
        return shown


class Stage1AutoResetWrapper(ForwardingWrapper):
    """Start an env of a batch anew in the step in which it ends.

    The observation of that step already belongs to the next episode; the last one of the old stands
    in ``info["final_observation"]``, for all envs. Reward and flags are those of the step. No seed
    is passed, so each env goes on with its own unnumbered episodes.
    """

    def step(self, action: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        """Step, and reset exactly the envs that ended."""
        outcome: tuple[Any, Any, Any, Any, Any] = self.env.step(action)
        terminated: Any = outcome[2]
        truncated: Any = outcome[3]
        ended = np.flatnonzero(as_array(terminated) | as_array(truncated))
        if len(ended) == 0:
            return outcome
        # A simulator may write its next observation into the arrays of the last.
        info = {**outcome[4], "final_observation": copied(outcome[0])}
        indices: Any = ended.astype(np.int32)
        if not isinstance(terminated, np.ndarray):  # a tensor: indices where the simulation is
            import torch

            indices = torch.as_tensor(indices, device=outcome[2].device)
        observation, _ = self.env.reset(options={"env_idx": indices})
        return observation, outcome[1], outcome[2], outcome[3], info


def copied(value: Any) -> Any:
    """Return a copy of a nested mapping of arrays and tensors."""
    if isinstance(value, Mapping):
        return {key: copied(entry) for key, entry in cast("Mapping[str, Any]", value).items()}
    return value.clone() if hasattr(value, "clone") else np.array(value)


def _joints(uid: str) -> tuple[Path, Path]:
    return ("agent", uid, "qpos"), ("agent", uid, "qvel")


def _condition_id_of(env: gym.Env[Any, Any]) -> str | None:
    """Return the env's ``condition_id``, through its wrappers; None if it has none."""
    try:
        found: Any = env.get_wrapper_attr("condition_id")
    except AttributeError:
        return None
    return found if isinstance(found, str) else None


def _condition_of(env: gym.Env[Any, Any]) -> ConditionConfig | None:
    """Return the env's condition; None if it has none that is known."""
    condition_id = _condition_id_of(env)
    try:
        return None if condition_id is None else resolve_condition(condition_id)
    except InputError:
        return None


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
        condition_id: One of `CONDITION_IDS`.
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
    episode_length = whole_number(f"{_OWNER}.episode_length", episode_length, least=1)
    root_seed = whole_number(f"{_OWNER}.root_seed", root_seed, least=0)
    num_envs = whole_number(f"{_OWNER}.num_envs", num_envs, least=1)
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
