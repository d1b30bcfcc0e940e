"""What one call of the control-affine filter reports. m = barriers, B = states of a batch."""

from dataclasses import dataclass

from torch import Tensor

from cadenza.core.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AffineInfo:
    """Record of one filtered action.

    Attributes:
        names: Names of the barriers, in the order of the arrays.
        status: "inactive" (action unchanged), "optimal" (changed, every row met), "infeasible", or
            why the solver failed on rows it should have met ("max_iter", "numerical",
            "bad_input"). With the last four the action is the fallback's.
        intervened: The returned action is not the proposed one.
        intervention: Euclidean distance of the two, in the unit of the action.
        fallback: Name of the fallback that made the action; None if none was needed.
        certified: The state is in the guaranteed set and every row is met.
        h: Barrier values, shape (m,).
        lowest: min over k < r of psi_k, shape (m,); negative outside the guaranteed set.
        slack: How far the returned action misses each row, shape (m,), in the unit of psi_{r-1}
            per second; 0 when met, inf where the row is not finite.
        lost: Barriers whose row nothing can meet, for the action does not act on it here or the row
            is not finite.
    """

    names: tuple[str, ...]
    status: str
    intervened: bool
    intervention: float
    fallback: str | None
    certified: bool
    h: FloatArray
    lowest: FloatArray
    slack: FloatArray
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AffineBatchInfo:
    """Record of a batch of filtered actions; the fields mean what those of `AffineInfo` do.

    Attributes:
        names: Names of the barriers.
        status: Codes of `cadenza.safety.batched.status`, shape (B,), int8.
        intervened: Shape (B,), bool.
        intervention: Shape (B,).
        fallback: A fallback made the action, shape (B,), bool.
        certified: Shape (B,), bool.
        h: Shape (B, m).
        lowest: Shape (B, m).
        slack: Shape (B, m).
        lost: Shape (B, m), bool.
    """

    names: tuple[str, ...]
    status: Tensor
    intervened: Tensor
    intervention: Tensor
    fallback: Tensor
    certified: Tensor
    h: Tensor
    lowest: Tensor
    slack: Tensor
    lost: Tensor
