"""Task contracts of our own tasks, which their environments carry as ``task_contract``, by robot.

`cadenza.core.contracts` says what a contract is and when it is compared.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cadenza.core.contracts import ActionField, ObsField, TaskContract

#: Contracts by robot, the ego's first.
Contracts = Mapping[str, TaskContract]
#: Who a robot is, whatever its seat is called; further ones are partners, too.
_ROLES: Final = ("ego", "partner")
_HZ: Final = 20.0


def _by_seat(uids: Sequence[str], contracts: Sequence[TaskContract]) -> Contracts:
    return {uid: contracts[min(k, len(contracts) - 1)] for k, uid in enumerate(uids)}


def _plane(name: str, unit: str, frame: str = "world") -> ObsField:
    return ObsField(name, 2, unit, frame)


def crossing(uids: Sequence[str]) -> Contracts:
    """Return the contracts of crossing with these robots."""
    others = [
        _plane(f"robot {k} {what}", unit, "world, minus own")
        for k in range(1, len(uids))
        for what, unit in (("position", "m"), ("velocity", "m/s"))
    ]
    own = [_plane("position", "m"), _plane("velocity", "m/s")]
    goal = _plane("goal", "m", "world, minus own")
    return _by_seat(
        uids,
        [
            TaskContract(
                task_id="crossing",
                env_id="cadenza/Crossing-v1",
                robot_uid=role,
                control_hz=_HZ,
                control_mode="acceleration",
                max_episode_steps=200,
                obs_spec=(*own, goal, *others),
                action_spec=(
                    ActionField("acceleration", 2, -limit, limit, unit="m/s^2", frame="world"),
                ),
            )
            for role, limit in zip(_ROLES, (2.0, 0.5), strict=True)
        ],
    )


def doorway(uids: Sequence[str], *, wheels: bool = False) -> Contracts:
    """Return the contracts of the door, for holonomic bases or robots on wheels."""
    state = [
        _plane("position", "m"),
        _plane("velocity", "m/s"),
        _plane("goal", "m", "world, minus own"),
        _plane("other position", "m", "world, minus own"),
        _plane("other velocity", "m/s", "world, minus own"),
    ]
    if wheels:
        state += [_plane("cosine and sine of heading", ""), ObsField("yaw rate", 1, "rad/s")]
    state.append(ObsField("time", 1, "s"))

    def moves(speed: float) -> tuple[ActionField, ...]:
        if not wheels:
            return (ActionField("velocity", 2, -speed, speed, unit="m/s", frame="world"),)
        turn = ActionField("yaw rate", 1, -2.0, 2.0, unit="rad/s", frame="own")
        return ActionField("speed", 1, -speed, speed, unit="m/s", frame="own"), turn

    return _by_seat(
        uids,
        [
            TaskContract(
                task_id="doorway_diffdrive" if wheels else "doorway",
                env_id="cadenza/DoorwayDiffDrive-v1" if wheels else "cadenza/Doorway-v1",
                robot_uid=role,
                control_hz=_HZ,
                control_mode="speed and yaw rate" if wheels else "velocity",
                max_episode_steps=400,
                obs_spec=tuple(state),
                action_spec=moves(speed),
            )
            for role, speed in zip(_ROLES, (1.0, 0.75), strict=True)
        ],
    )


def cooperative_push(uids: Sequence[str]) -> Contracts:
    """Return the contracts of the cooperative push."""
    unit = "half a side"
    relative = [
        _plane(name, unit, "arena, minus own")
        for name in ("landmark 1", "landmark 2", "other position")
    ]
    velocity = _plane("velocity", f"{unit}/s", "arena")
    return _by_seat(
        uids,
        [
            TaskContract(
                task_id="mpe_cooperative_push",
                env_id="cadenza/CooperativePush-v1",
                robot_uid=role,
                control_hz=10.0,
                control_mode="velocity",
                max_episode_steps=50,
                obs_spec=(_plane("position", unit, "arena"), velocity, *relative),
                action_spec=(
                    ActionField("velocity", 2, -1.0, 1.0, unit=f"{unit}/s", frame="arena"),
                ),
            )
            for role in _ROLES
        ],
    )


def foraging(uids: Sequence[str], *, foods: int = 3) -> Contracts:
    """Return the contracts of foraging for that much food, on fields of any size."""

    def cell(name: str, lowest: float, highest_level: float) -> tuple[ObsField, ObsField]:
        where = ObsField(f"{name} cell", 2, "row, column", "field", lowest, 18.0)
        return where, ObsField(f"{name} level", 1, low=0.0, high=highest_level)

    eaten = [part for k in range(foods) for part in cell(f"food {k + 1}", -1.0, 4.0)]
    players = [part for name in ("own", "other") for part in cell(name, 0.0, 2.0)]
    return _by_seat(
        uids,
        [
            TaskContract(
                task_id="foraging",
                env_id="cadenza/Foraging-v1",
                robot_uid=role,
                control_mode="choice",
                max_episode_steps=50,
                obs_spec=(*eaten, *players),
                action_spec=(ActionField("move", 1, 0.0, 5.0),),
                notes="moves: none, north, south, west, east, load; food that is gone is -1, -1, 0",
            )
            for role in _ROLES
        ],
    )


def cocarry(uids: Sequence[str], *, view: str = "task", track: str = "grip") -> Contracts:
    """Return the contracts of co-carry; view and track are the ego's, the partner has the usual."""
    facing = ("its base", "the other base")
    task_view = (
        ObsField("goal minus bar", 3, "m", "world", scale=0.2),
        ObsField("other grip minus where it belongs", 3, "m", "world", scale=0.02),
        ObsField("own grip speed", 3, "m/s", "world", scale=0.2),
        ObsField("other grip speed", 3, "m/s", "world", scale=0.2),
        ObsField("bar pitch and yaw", 2, "rad", "world", scale=0.1),
        ObsField("internal force", 1, "N", "bar", scale=20.0),
        ObsField("own grip minus start", 3, "m", "world", scale=0.2),
        ObsField("time", 1, "s", scale=5.0),
        ObsField("largest force so far", 1, "f_max"),
    )
    joints = [
        ObsField(f"{who} {what}", 9, unit, frame)
        for who, frame in zip(("own", "other"), facing, strict=True)
        for what, unit in (("joint angles", "rad"), ("joint rates", "rad/s"))
    ]
    bar = (ObsField("bar position", 3, "m", "world"), ObsField("bar rotation", 4, "", "world"))
    end = (ObsField("goal", 3, "m", "world"), ObsField("largest force so far", 1, "f_max"))
    grip = ActionField("grip step", 3, -1.0, 1.0, -0.03, 0.03, "m", "world")
    joint = ActionField("joint step", 7, -1.0, 1.0, -0.1, 0.1, "rad", "its base")
    return _by_seat(
        uids,
        [
            _two_arms("cocarry_mj", "cadenza/CoCarry-v1", 300, role, x, seen, done)
            for role, x, seen, done in zip(
                _ROLES,
                (-0.5, 0.5),
                ((*joints, *bar, *end) if view == "full" else task_view, task_view),
                (joint if track == "joint" else grip, grip),
                strict=True,
            )
        ],
    )


def handover(uids: Sequence[str]) -> Contracts:
    """Return the contracts of the handover: receiver and presenter."""

    def spaces(*told: tuple[str, int, str, float]) -> tuple[ObsField, ...]:
        return tuple(
            ObsField(name, dim, unit, "" if unit in ("", "s", "N") else "world", scale=scale)
            for name, dim, unit, scale in told
        )

    receiver = spaces(
        ("handle minus own grip", 3, "m", 0.2),
        ("turn to the peg", 3, "rad", 0.5),
        ("seat minus tip", 3, "m", 0.2),
        ("turn of peg to fixture", 3, "rad", 0.5),
        ("own grip speed", 3, "m/s", 0.1),
        ("handle speed", 3, "m/s", 0.1),
        ("own way to the seat", 3, "m", 0.2),
        ("own turn to the seat", 3, "rad", 0.5),
        ("turn that sets the hand straight", 3, "rad", 0.5),
        ("ego and presenter hold the peg", 2, "", 1.0),
        ("contact force", 1, "N", 75.0),
        ("time", 1, "s", 11.0),
    )
    presenter = spaces(
        ("zone minus own grip", 3, "m", 0.2),
        ("turn that sets the hand straight", 3, "rad", 0.5),
        ("receiver's grip minus handle", 3, "m", 0.2),
        ("own grip speed", 3, "m/s", 0.1),
        ("receiver's grip speed", 3, "m/s", 0.1),
        ("receiver and presenter hold the peg", 2, "", 1.0),
        ("time", 1, "s", 11.0),
    )
    moves = (
        ActionField("grip step", 3, -1.0, 1.0, -0.02, 0.02, "m", "world"),
        ActionField("hand turn", 3, -1.0, 1.0, -0.2, 0.2, "rad", "world"),
    )
    gripper = ActionField("gripper", 1, -1.0, 1.0, unit="closed above 0")
    return _by_seat(
        uids,
        [
            _two_arms(
                "handover_mj", "cadenza/Handover-v1", 600, "ego", -0.5, receiver, *moves, gripper
            ),
            _two_arms("handover_mj", "cadenza/Handover-v1", 600, "partner", 0.5, presenter, *moves),
        ],
    )


def _two_arms(
    task_id: str,
    env_id: str,
    steps: int,
    role: str,
    base: float,
    seen: tuple[ObsField, ...],
    *done: ActionField,
) -> TaskContract:
    return TaskContract(
        task_id=task_id,
        env_id=env_id,
        robot_uid=role,
        control_hz=_HZ,
        control_mode="steps of targets",
        delta_pose_frame="world",
        max_episode_steps=steps,
        obs_spec=seen,
        action_spec=done,
        base_position_in_world=(base, 0.0, 0.0),
    )


#: The ego's of every task with the usual options.
OWN: Final = (
    *(
        task(_ROLES)["ego"]
        for task in (crossing, cooperative_push, foraging, cocarry, handover, doorway)
    ),
    doorway(_ROLES, wheels=True)["ego"],
)
