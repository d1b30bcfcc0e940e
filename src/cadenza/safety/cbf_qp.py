"""Constructors of the pairwise filters, by whose actions may change.

`ExpCBFQP.ego_only` builds the filter for unknown partners, `cadenza.safety.ego_only`. The names
that code written for the original module imports are here as well.
"""

from collections.abc import Mapping

from cadenza.safety.barrier import DEFAULT_CBF_GAMMA, Plant, pair_h_value
from cadenza.safety.budget_split import BudgetSplitStrategy
from cadenza.safety.ego_only import EgoOnlyCBFQP
from cadenza.safety.ego_options import Barrier, Compat, OnInfeasible, RateLimit
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.solvers import QPSolver
from cadenza.safety.wae import CbfPower

__all__ = ["DEFAULT_CBF_GAMMA", "AgentSnapshot", "ExpCBFQP", "pair_h_value"]


class ExpCBFQP:
    """Pairwise safety filters; one constructor per answer to "whose actions may change"."""

    @classmethod
    def ego_only(
        cls,
        *,
        control_models: Mapping[str, AgentControlModel],
        solver: QPSolver | None = None,
        cbf_gamma: float = DEFAULT_CBF_GAMMA,
        plant: Plant = "zoh",
        margin_m: float = 0.0,
        prediction_error: float | None = None,
        on_infeasible: OnInfeasible = "least_violation",
        barrier: Barrier = "sampled",
        compat: Compat | None = None,
        cbf_power: CbfPower = 1,
        max_age_s: float = 0.0,
        budget_split: BudgetSplitStrategy | str | None = None,
        rate_limit: RateLimit = "off",
    ) -> EgoOnlyCBFQP:
        """Return the filter that changes the ego's action only; see `EgoOnlyCBFQP`."""
        return EgoOnlyCBFQP(
            control_models=control_models,
            solver=solver,
            cbf_gamma=cbf_gamma,
            plant=plant,
            margin_m=margin_m,
            prediction_error=prediction_error,
            on_infeasible=on_infeasible,
            barrier=barrier,
            compat=compat,
            cbf_power=cbf_power,
            max_age_s=max_age_s,
            budget_split=budget_split,
            rate_limit=rate_limit,
        )
