"""Many states at once: rows to actions with the batched projection."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from cadenza.core.arrays import FloatArray
from cadenza.safety.affine.dynamics import ControlAffineDynamics
from cadenza.safety.affine.fallbacks import FallbackRequest, rest_action
from cadenza.safety.affine.info import AffineBatchInfo
from cadenza.safety.affine.lifting import AffineRow
from cadenza.safety.affine.rows import missed, scaled
from cadenza.safety.batched.projection import project_batch
from cadenza.safety.batched.status import INFEASIBLE, OPTIMAL, STATUS_NAMES

#: A fallback whose answer is already checked and in the box.
CheckedFallback: TypeAlias = Callable[[FallbackRequest], FloatArray]


def filter_states(
    row: AffineRow,
    X: Tensor,
    U_nominal: Tensor,
    *,
    names: tuple[str, ...],
    dynamics: ControlAffineDynamics,
    weights: Tensor,
    box: tuple[FloatArray, FloatArray],
    fallback: CheckedFallback | None,
) -> tuple[Tensor, AffineBatchInfo]:
    """Return the actions, shape (B, k), and the record of the batch.

    Args:
        row: Rows of the states, with B first.
        X: States, shape (B, n).
        U_nominal: Proposed actions, shape (B, k).
        names: Of the barriers.
        dynamics: The robot.
        weights: Of the barriers, shape (m,).
        box: Bounds, shape (k,) each.
        fallback: For states without a solution; None keeps the least violation.
    """
    lower, upper = (torch.as_tensor(bound, device=X.device) for bound in box)
    parts = scaled(row, weights)
    gone = parts.lost.any(-1)

    def rest(x: Tensor) -> Tensor:
        return rest_action(dynamics, x)

    resting = torch.func.vmap(rest)(X)
    reference = torch.where(gone.unsqueeze(-1), resting, U_nominal)
    answer = project_batch(reference, parts.a, parts.b, lower, upper, parts.active)
    status = torch.where(gone, torch.full_like(answer.status, INFEASIBLE), answer.status)
    failed = status > OPTIMAL
    actions = answer.u.clone()
    if fallback is not None:
        for i in failed.nonzero().flatten().numpy(force=True).tolist():
            request = FallbackRequest(
                dynamics=dynamics,
                state=X[i].numpy(force=True),
                nominal=U_nominal[i].numpy(force=True),
                least_violation=answer.u[i].numpy(force=True),
                lower=box[0],
                upper=box[1],
                status=STATUS_NAMES[int(status[i])],
            )
            actions[i] = torch.as_tensor(fallback(request), device=X.device)
    info = AffineBatchInfo(
        names=names,
        status=status,
        intervened=(U_nominal != actions).any(-1),
        intervention=(actions - U_nominal).square().sum(-1).sqrt(),
        fallback=failed,
        certified=~failed & (row.lowest >= 0.0).all(-1),
        h=row.h,
        lowest=row.lowest,
        slack=missed(row, actions),
        lost=parts.lost,
    )
    return actions, info
