"""What happens to the slack when another partner takes the seat."""

import math
from collections.abc import Iterable

from cadenza.core.errors import InputError
from cadenza.safety.pairs import make_ego_pair_keys, make_lambda_dict
from cadenza.safety.state import DEFAULT_WARMUP_STEPS, SafetyState


def reset_on_partner_swap(
    state: SafetyState,
    *,
    uids: Iterable[str],
    lambda_safe: float = 0.0,
    n_warmup_steps: int = DEFAULT_WARMUP_STEPS,
    ego_uid: str | None = None,
) -> None:
    """Start over with an unknown partner: fresh slack and a warm-up, in place.

    Args:
        state: Its slack and counter are replaced; target and step size stay.
        uids: All agents.
        lambda_safe: Slack to start from, m/s^2.
        n_warmup_steps: Length of the warm-up, steps.
        ego_uid: Given, only the ego's pairs get a slack, as the ego-only filter expects.

    Raises:
        InputError: A duplicate id, a slack that is not finite or a negative warm-up.
    """
    if not math.isfinite(lambda_safe):
        raise InputError(f"partner swap: expected a finite lambda_safe, got {lambda_safe}.")
    if n_warmup_steps < 0:
        raise InputError(f"partner swap: expected n_warmup_steps >= 0, got {n_warmup_steps}.")
    if ego_uid is None:
        state.lambda_ = make_lambda_dict(uids, fill=lambda_safe)
    else:
        state.lambda_ = dict.fromkeys(make_ego_pair_keys(ego_uid, uids), float(lambda_safe))
    state.warmup_steps_remaining = n_warmup_steps
