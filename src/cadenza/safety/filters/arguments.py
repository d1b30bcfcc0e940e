"""Checks on what a caller hands to a filter, in the order callers rely on.

Snapshots check their own numbers when they are built, so only their kind and dimension are
looked at here.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from cadenza.core.checks import is_real, real_array, shown
from cadenza.core.errors import ConfigurationError, InputError, UnknownNameError
from cadenza.safety.contracts import AgentControlModel, LambdaDict
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot

#: Control steps the row maths is meant for, s; below, speed differences over dt lose digits.
MIN_DT: Final = 1e-6
MAX_DT: Final = 1e3


def require_call(
    proposed_action: object, obs: object, ego_uid: object, predicted: object, dt: object
) -> dict[str, AgentSnapshot]:
    """Return the agents of one filter call after checking the frame of the call.

    Raises:
        InputError: The ego, the predictions or dt is missing, dt is out of range, or ``obs``
            holds no agents.
        TypeError: The action is not an array.
    """
    if ego_uid is None:
        raise InputError("filter: ego_uid is required, got None; name the agent to protect.")
    if predicted is None:
        raise InputError("filter: partner_predicted_states is required, got None.")
    if not isinstance(predicted, Mapping):
        raise InputError(
            "filter: partner_predicted_states: expected snapshots by agent id, "
            f"got {type(predicted).__name__}."
        )
    if dt is None:
        raise InputError("filter: dt is required, got None; pass the control step in seconds.")
    if not (is_real(dt) and MIN_DT <= dt <= MAX_DT):
        raise InputError(
            f"filter: dt must be a finite number of seconds in [{MIN_DT:g}, {MAX_DT:g}], "
            f"got {shown(dt)}."
        )
    if not isinstance(proposed_action, np.ndarray):
        raise TypeError(
            f"filter: proposed_action must be an array, got {type(proposed_action).__name__}."
        )
    snapshots = agent_states(obs)
    if not isinstance(ego_uid, str):
        raise InputError(
            f"filter: ego_uid: expected the id of an agent, got {type(ego_uid).__name__}."
        )
    if ego_uid not in snapshots:
        raise InputError(
            f'filter: expected the ego {ego_uid!r} in obs["agent_states"], got {sorted(snapshots)}.'
        )
    return snapshots


def agent_states(obs: object) -> dict[str, AgentSnapshot]:
    """Return the agents of an observation by id, whatever they are.

    Raises:
        InputError: It holds none.
    """
    holder: Any = obs
    agents: object = holder.get("agent_states") if isinstance(obs, Mapping) else obs
    if not isinstance(agents, Mapping):
        raise InputError(
            'filter: obs["agent_states"] must be a dict of AgentSnapshot by agent id, '
            f"got {type(agents).__name__}."
        )
    return cast("dict[str, AgentSnapshot]", agents)


def require_kind(name: str, value: object, kind: type) -> None:
    """Raise InputError unless ``value`` is a ``kind``."""
    if not isinstance(value, kind):
        raise InputError(f"filter: {name}: expected {kind.__name__}, got {type(value).__name__}.")


def require_member(uid: str, known: Collection[str], what: str) -> None:
    """Raise UnknownNameError unless ``uid`` is in ``known``; ``what`` names the collection."""
    if uid not in known:
        raise UnknownNameError(f"filter: expected {uid!r} in {what}, got {sorted(known)}.")


def require_models(control_models: object) -> None:
    """Raise ConfigurationError unless there are models, each filed under its own id."""
    if not isinstance(control_models, Mapping):
        raise ConfigurationError(
            "filter: control_models: expected control models by agent id, "
            f"got {type(control_models).__name__}."
        )
    if not control_models:
        raise ConfigurationError("filter: expected at least one control model, got none.")
    for uid, model in cast("Mapping[str, object]", control_models).items():
        if not isinstance(model, AgentControlModel):
            raise ConfigurationError(
                f"filter: control_models[{uid!r}]: expected an AgentControlModel, "
                f"got {type(model).__name__}."
            )
        if model.uid != uid:
            raise ConfigurationError(
                f"filter: expected the control model of {uid!r}, got one for {model.uid!r}."
            )
    require_one_space(list(cast("Mapping[str, AgentControlModel]", control_models).values()))


def require_one_space(models: Sequence[AgentControlModel]) -> None:
    """Raise ConfigurationError unless all agents move in as many dimensions as the first."""
    for model in models:
        if model.position_dim != models[0].position_dim:
            raise ConfigurationError(
                f"filter: expected all agents in the {models[0].position_dim} dimensions of "
                f"{models[0].uid!r}, got {model.position_dim} of {model.uid!r}; describe both in "
                "the plane or both in space."
            )


def checked_timestep(name: str, value: object) -> float:
    """Return a control step, s; ConfigurationError unless the row maths is meant for it."""
    if is_real(value) and MIN_DT <= value <= MAX_DT:
        return float(value)
    raise ConfigurationError(
        f"{name}: expected seconds in [{MIN_DT:g}, {MAX_DT:g}], got {shown(value)}."
    )


def require_lambda(
    lambda_: LambdaDict,
    expected: Sequence[tuple[str, str]],
    remedy: str = "build it for the ego's pairs with make_ego_pair_keys",
) -> list[float]:
    """Return the numbers of exactly the expected pairs, in their order, m/s^2.

    Raises:
        InputError: Other pairs, or a slack that is no finite number.
    """
    if lambda_.keys() != set(expected):
        raise InputError(
            f"filter: state.lambda_ key set mismatch: expected {sorted(expected)}, "
            f"got {sorted(lambda_)}; {remedy}."
        )
    for key, value in lambda_.items():
        if not (is_real(value) and -MAX_MAGNITUDE <= value <= MAX_MAGNITUDE):
            raise InputError(
                f"filter: state.lambda_[{key}]: expected a finite number, got {shown(value)}"
            )
    return [lambda_[key] for key in expected]


def require_action(
    action: "np.ndarray[Any, Any]", size: int, name: str = "proposed_action"
) -> list[float]:
    """Return the action's numbers after checking shape, kind and size; ``name`` is for errors.

    Raises:
        InputError: Wrong shape, not numeric, NaN, infinite or absurdly large.
    """
    if action.shape != (size,):
        raise InputError(f"filter: {name}: expected shape ({size},), got {action.shape}.")
    if type(action) is not np.ndarray or action.dtype.kind not in "fiu":
        action = real_array(f"filter: {name}", action)
    numbers: list[float] = action.tolist()
    for number in numbers:
        if not -MAX_MAGNITUDE <= number <= MAX_MAGNITUDE:
            raise InputError(
                f"filter: {name}: expected finite numbers up to {MAX_MAGNITUDE:.0e}, got {numbers}."
            )
    return numbers


def require_previous(previous: object, size: int) -> list[float]:
    """Return the numbers of the previous action, which the rate limit starts from.

    Raises:
        InputError: Malformed, see `require_action`.
        TypeError: Not an array.
    """
    if not isinstance(previous, np.ndarray):
        raise TypeError(
            f"filter: previous_action must be an array or None, got {type(previous).__name__}."
        )
    return require_action(cast("np.ndarray[Any, Any]", previous), size, "previous_action")


def require_snapshot(name: str, snapshot: object, dim: int) -> AgentSnapshot:
    """Return ``snapshot`` after checking its kind and Cartesian dimension.

    Raises:
        InputError: Not an AgentSnapshot, or of another dimension than the ego's control model.
    """
    if not isinstance(snapshot, AgentSnapshot):
        raise InputError(f"filter: {name}: expected AgentSnapshot, got {type(snapshot).__name__}.")
    if len(snapshot.position_numbers) != dim:
        raise InputError(
            f"filter: {name}: expected {dim} dimensions like the ego's control model, "
            f"got {len(snapshot.position_numbers)}."
        )
    return snapshot


def require_snapshots(
    name: str, snapshots: Mapping[str, AgentSnapshot], uids: Iterable[str], dim: int
) -> list[AgentSnapshot]:
    """Return the snapshots of some agents; see `require_snapshot`.

    Raises:
        UnknownNameError: One is missing.
        InputError: One is malformed.
    """
    found: list[AgentSnapshot] = []
    for uid in uids:
        require_member(uid, snapshots, name)
        found.append(require_snapshot(name, snapshots[uid], dim))
    return found
