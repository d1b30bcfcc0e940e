"""Checks on what a caller hands to the joint filters, in the order callers rely on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from cadenza.core.checks import is_real, shown
from cadenza.core.errors import InputError
from cadenza.safety.bounds import MAX_BOUND
from cadenza.safety.filters.arguments import (
    require_action,
    require_lambda,
    require_member,
    require_snapshot,
)
from cadenza.safety.pairs import LambdaDict, make_pair_keys
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.snapshot import AgentSnapshot


@dataclass(frozen=True, slots=True, eq=False)
class JointCall:
    """One checked call, agents in string order of their ids.

    Attributes:
        uids: The agents whose actions are proposed.
        snapshots: Their motion.
        actions: Their proposed actions, plain numbers.
        keys: Their pairs in canonical order.
    """

    uids: list[str]
    snapshots: list[AgentSnapshot]
    actions: list[list[float]]
    keys: list[tuple[str, str]]


def require_joint_call(
    proposed_action: object,
    obs: object,
    lambda_: LambdaDict,
    models: Mapping[str, AgentControlModel],
) -> JointCall:
    """Return the parts of one call after checking them.

    Raises:
        InputError: ``obs`` holds no agents, an agent no snapshot, no action is proposed, an
            action is malformed or not finite, or the slack is not that of all pairs.
        TypeError: ``proposed_action`` is not a dict, or an action not an array.
        UnknownNameError: An agent has no control model.
    """
    agents = cast("Mapping[str, Any]", obs).get("agent_states") if isinstance(obs, Mapping) else obs
    if not isinstance(agents, dict):
        raise InputError(
            'filter: obs["agent_states"] must be a dict of AgentSnapshot by agent id, '
            f"got {type(agents).__name__}."
        )
    if not isinstance(proposed_action, dict):
        raise TypeError(
            "filter: proposed_action must be a dict of arrays by agent id, "
            f"got {type(proposed_action).__name__}."
        )
    proposed = cast("dict[str, object]", proposed_action)
    if not proposed:
        raise InputError("filter: proposed_action: expected at least one agent, got none.")
    snapshots = cast("dict[str, object]", agents)
    uids = sorted(proposed)
    for uid in uids:
        require_member(uid, models, "control_models")
    dim = models[uids[0]].position_dim
    checked = [_snapshot_of(uid, snapshots, dim) for uid in uids]
    actions = [_action_of(uid, proposed[uid], models[uid].action_dim) for uid in uids]
    keys = make_pair_keys(uids)
    remedy = "build it for all pairs of proposed_action with make_lambda_dict"
    require_lambda(lambda_, frozenset(keys), remedy)
    return JointCall(uids, checked, actions, keys)


def require_share(
    ego_uid: object, partner_action_bound: object, uids: list[str]
) -> tuple[str, float]:
    """Return the ego and the largest change of a partner's action of a shared-control call.

    Raises:
        InputError: The ego is missing or proposes no action, or the bound is missing, not
            positive or not finite.
    """
    if partner_action_bound is None:
        raise InputError("filter: partner_action_bound is required, got None; pass it in > 0.")
    if not (is_real(partner_action_bound) and 0.0 < partner_action_bound <= MAX_BOUND):
        raise InputError(
            "filter: partner_action_bound: expected a finite number > 0, "
            f"got {shown(partner_action_bound)}."
        )
    if not isinstance(ego_uid, str) or ego_uid not in uids:
        raise InputError(
            f"filter: ego_uid: expected an agent of proposed_action {uids}, got {ego_uid!r}."
        )
    return ego_uid, float(partner_action_bound)


def _snapshot_of(uid: str, snapshots: Mapping[str, object], dim: int) -> AgentSnapshot:
    if uid not in snapshots:
        raise InputError(
            f'filter: expected a snapshot of {uid!r} in obs["agent_states"], '
            f"got {sorted(snapshots)}."
        )
    return require_snapshot(f"agent_states[{uid!r}]", snapshots[uid], dim)


def _action_of(uid: str, action: object, size: int) -> list[float]:
    name = f"proposed_action[{uid!r}]"
    if not isinstance(action, np.ndarray):
        raise TypeError(f"filter: {name} must be an array, got {type(action).__name__}.")
    return require_action(cast("np.ndarray[Any, Any]", action), size, name)
