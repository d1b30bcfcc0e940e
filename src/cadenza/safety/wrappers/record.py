"""What a wrapper writes into ``info["safety"]``.

Keys are text and values are numbers, text or arrays, so that vector environments can stack them.
No times: equal seeds give equal infos.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadenza.safety.pairs import LambdaDict, canonical_pair_key
from cadenza.safety.runtime.safety_step import SafetyStep


def safety_record(
    step: SafetyStep,
    *,
    ego_uid: str,
    barrier: LambdaDict,
    nominal: NDArray[Any],
    applied: NDArray[Any],
    fallback: bool,
) -> dict[str, Any]:
    """Return the record of one step.

    Args:
        step: The runtime's decision.
        ego_uid: The guarded agent.
        barrier: h per ego pair before the action, m/s.
        nominal: The policy's action, in the environment's unit.
        applied: What the environment executed, likewise.
        fallback: The wrapper's fallback replaced the runtime's action.

    Returns:
        ``intervened`` (the executed action differs from the nominal one), ``nominal_action``,
        ``applied_action``, ``intervention`` (distance of the two in the control model's unit),
        ``status``, ``infeasible``, ``braked`` (the braking action was executed), ``fallback``,
        ``unfiltered`` (the policy's own action was executed although it misses a row, as only a
        fallback of the caller's can have it), ``uncertified``, ``bad_input`` (text, empty if
        sound). The intervention is NaN for a nominal action that is not finite. Per partner id:
        ``barrier`` (m/s, >= 0 in the safe set), ``margin`` (m), ``slack`` and ``lambda`` (m/s^2),
        ``constraint_violation`` (m/s) and, when a forecast was scored, ``prediction_gap_loss``
        (m/s).
    """
    info = step.info
    # The filter lists partners in string order.
    partners = sorted(a if b == ego_uid else b for a, b in info["lambda"])

    def per_partner(values: NDArray[Any]) -> dict[str, float]:
        return dict(zip(partners, values.tolist(), strict=True))

    def of_pairs(values: Mapping[tuple[str, str], float]) -> dict[str, float]:
        return {uid: float(values[canonical_pair_key(ego_uid, uid)]) for uid in partners}

    sound = bool(np.isfinite(nominal).all())
    intervened = bool(np.any(applied != nominal))
    record: dict[str, Any] = {
        "intervened": intervened,
        "nominal_action": nominal,
        "applied_action": applied,
        "intervention": float(step.intervention) if sound else math.nan,
        "status": info["status"],
        "infeasible": step.infeasible,
        "braked": step.braked,
        "fallback": fallback,
        "unfiltered": fallback and not intervened,
        "uncertified": step.uncertified,
        "bad_input": step.bad_input or "",
        "margin": per_partner(info["margin"]),
        "slack": per_partner(info["slack"]),
        "constraint_violation": per_partner(info["constraint_violation"]),
        "lambda": of_pairs(info["lambda"]),
    }
    if barrier:
        record["barrier"] = of_pairs(barrier)
    if step.loss is not None:
        record["prediction_gap_loss"] = {
            uid: float(step.loss[key])
            for uid in partners
            if (key := canonical_pair_key(ego_uid, uid)) in step.loss
        }
    return record
