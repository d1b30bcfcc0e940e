"""Conditions of the pick-and-place task: robots, frozen ids, what moves and how fast.

The condition ids are frozen: pre-registered experiments name them. Two of them vary the partner's
body (action space, AS), two the ego's senses (observation modality, OM).
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.contracts import AgentControlModel
from cadenza.safety.control_models import (
    ActionKind,
    DoubleIntegratorControlModel,
    JacobianControlModel,
)
from cadenza.safety.snapshot import AgentSnapshot

#: Robots of the task.
EGO_UID: Final = "panda_wristcam"
PANDA_PARTNER_UID: Final = "panda_partner"
FETCH_UID: Final = "fetch"

#: The frozen ids.
AS_HOMO: Final = "stage1_pickplace_panda_only_mappo_shared_param"
AS_HETERO: Final = "stage1_pickplace_panda_plus_fetch_ego_aht_happo_per_agent"
OM_HOMO: Final = "stage1_pickplace_vision_only"
OM_HETERO: Final = "stage1_pickplace_vision_plus_force_torque_plus_proprio"

#: Control steps per episode: 5 s at 20 Hz.
DEFAULT_EPISODE_LENGTH: Final = 100
#: Standard deviation of the noise on the synthesised finger forces, N: the lower end of what wrist
#: sensors of this arm show (0.5 to 1.5 N).
SYNTHESISED_FT_NOISE_SIGMA_N: Final = 0.5
#: Cartesian acceleration each body is credited with, m/s^2: half of the arm's rated 20 m/s^2, and
#: what the wheeled base accelerates with.
PANDA_CARTESIAN_ACCEL_CAPACITY_MS2: Final = 10.0
FETCH_CARTESIAN_ACCEL_CAPACITY_MS2: Final = 1.5
ACCEL_CAPACITY_MS2: Final[Mapping[str, float]] = {
    EGO_UID: PANDA_CARTESIAN_ACCEL_CAPACITY_MS2,
    PANDA_PARTNER_UID: PANDA_CARTESIAN_ACCEL_CAPACITY_MS2,
    FETCH_UID: FETCH_CARTESIAN_ACCEL_CAPACITY_MS2,
}
#: Safety balls around the tool centre of a Panda and the base of a Fetch, m.
PANDA_SAFETY_RADIUS_M: Final = 0.10
FETCH_SAFETY_RADIUS_M: Final = 0.35
#: Numbers in a Panda's action: seven joint steps and the gripper.
PANDA_ACTION_DIM: Final = 8

#: Maps a snapshot to a Jacobian, shape (3, A).
JacobianFn: TypeAlias = Callable[[AgentSnapshot], FloatArray]


class ConditionConfig(NamedTuple):
    """One condition of the pick-and-place task.

    Attributes:
        condition_id: Its frozen id.
        agent_uids: Ego and partner.
        obs_mode: ManiSkill's observation mode, which holds all that the condition may show.
        is_om_condition: Whether it varies the ego's senses.
        ft_synthesis_enabled: Whether the ego is meant to use the finger forces. They are computed
            in every condition.
    """

    condition_id: str
    agent_uids: tuple[str, str]
    obs_mode: str
    is_om_condition: bool
    ft_synthesis_enabled: bool


_IMAGES: Final = "rgb+depth+state_dict"
_TABLE: Final = {
    condition.condition_id: condition
    for condition in (
        ConditionConfig(AS_HOMO, (EGO_UID, PANDA_PARTNER_UID), "state_dict", False, False),
        ConditionConfig(AS_HETERO, (EGO_UID, FETCH_UID), "state_dict", False, False),
        ConditionConfig(OM_HOMO, (EGO_UID, FETCH_UID), _IMAGES, True, False),
        ConditionConfig(OM_HETERO, (EGO_UID, FETCH_UID), _IMAGES, True, True),
    )
}
#: All ids, in the order AS-homo, AS-hetero, OM-homo, OM-hetero.
CONDITION_IDS: Final = tuple(_TABLE)


def resolve_condition(condition_id: str) -> ConditionConfig:
    """Return the condition of that id.

    Raises:
        InputError: The id is not one of the four; lists them.
    """
    condition = _TABLE.get(condition_id)
    if condition is None:
        raise InputError(
            f"condition_id: {condition_id!r} is not one of the four pre-registered conditions "
            f"{sorted(_TABLE)} (ADR-007: a pre-registered id is never edited)."
        )
    return condition


def build_control_models_for_condition(
    condition_id: str,
    *,
    jacobian_fn: JacobianFn | Mapping[str, JacobianFn] | None = None,
    fetch_action_dim: int | None = None,
    panda_action_dim: int = PANDA_ACTION_DIM,
    bias_fn: Mapping[str, JacobianFn] | None = None,
    control_timestep_s: float | None = None,
    partner_accel_capacity: float | None = None,
) -> dict[str, AgentControlModel]:
    """Return how each robot's action moves its safety ball.

    A Panda moves its tool centre through its Jacobian. A Fetch moves its base: with
    ``fetch_action_dim`` by the velocity command inside its action, without it as a point mass in
    the plane.

    Args:
        condition_id: Id of the condition.
        jacobian_fn: Jacobian per action unit, shape (3, A), of all Pandas or by uid. A model
            without one raises where it is asked to map an action.
        fetch_action_dim: Numbers in the Fetch's action.
        panda_action_dim: Numbers in a Panda's action.
        bias_fn: Returns J' q', shape (3,), m/s^2, by uid; robots it lacks have none.
        control_timestep_s: Time in which a Panda's joint step is made and a Fetch's velocity
            reached, s. None takes actions for accelerations.
        partner_accel_capacity: Acceleration that the partner's ball never exceeds, m/s^2; None
            takes what its body is credited with.

    Raises:
        InputError: The id is unknown, or a number is out of range.
    """
    ego, partner = resolve_condition(condition_id).agent_uids
    biases = bias_fn or {}
    jacobians: Mapping[str, JacobianFn | None] = (
        dict.fromkeys({ego, partner} - {FETCH_UID}, jacobian_fn)
        if jacobian_fn is None or callable(jacobian_fn)
        else jacobian_fn
    )

    def model(uid: str, capacity: float) -> AgentControlModel:
        is_fetch = uid == FETCH_UID
        if is_fetch and fetch_action_dim is None:
            return DoubleIntegratorControlModel(uid, 2, capacity=capacity)
        step: ActionKind = "joint_velocity" if is_fetch else "joint_position_delta"
        return JacobianControlModel(
            uid,
            fetch_action_dim if is_fetch and fetch_action_dim is not None else panda_action_dim,
            position_dim=3,
            jacobian_fn=jacobians.get(uid),
            bias_fn=biases.get(uid),
            max_cartesian_accel_value=capacity,
            action_kind="joint_acceleration" if control_timestep_s is None else step,
            control_timestep_s=control_timestep_s,
        )

    of_partner = partner_accel_capacity
    if of_partner is None:
        of_partner = ACCEL_CAPACITY_MS2[partner]
    return {ego: model(ego, ACCEL_CAPACITY_MS2[ego]), partner: model(partner, of_partner)}
