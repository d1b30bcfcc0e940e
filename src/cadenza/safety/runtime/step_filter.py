"""The ego-only filter as the runtime calls it: partners by forecast, scores by barrier.

Two filters share one set of rows: one trusts forecast accelerations as far as
`SafetyOptions.prediction_error` says, the other never; each step takes the first only while every
forecast claims an error within that bound.

Units:  m/s for barriers and scores, m/s^2 for slack and errors of forecasts.
"""

from collections.abc import Mapping

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import Bounds
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.filters.arguments import MAX_DT, MIN_DT
from cadenza.safety.filters.ego_only import EgoOnlyCBFQP
from cadenza.safety.pairs import LambdaDict, canonical_pair_key
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.rows.authority import check_authority
from cadenza.safety.rows.barrier import Plant
from cadenza.safety.runtime.fallback import stop_action
from cadenza.safety.runtime.forecasting import DueForecast
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.predictors import Prediction
from cadenza.safety.runtime.safety_step import blank_info, distance
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.solvers import make_solver
from cadenza.safety.state import FilterInfo, SafetyState


class StepFilter:
    """Filters the actions of one ego.

    Args:
        ego_uid: The guarded agent.
        control_models: Model of every agent.
        bounds: Envelope of the task.
        dt: Control step, s.
        plant: How the plant integrates one step.
        options: Configuration.

    Raises:
        ConfigurationError: The control step is out of range.
        MissingExtraError: The solver's library is not installed.
    """

    def __init__(
        self,
        *,
        ego_uid: str,
        control_models: Mapping[str, AgentControlModel],
        bounds: Bounds,
        dt: float,
        plant: Plant,
        options: SafetyOptions,
    ) -> None:
        self._ego_uid = ego_uid
        self._models = control_models
        self._bounds = bounds
        if not MIN_DT <= dt <= MAX_DT:
            raise ConfigurationError(
                f"SafetyRuntime.control_timestep: expected {MIN_DT:g} to {MAX_DT:g} s, got {dt}."
            )
        self._dt = dt
        self._error = options.prediction_error
        #: The published filter takes every declaration at its word.
        self._authority_known = options.compat == "upstream"
        settings = options.filter_options()
        solver = make_solver(options.solver)
        self._filter: EgoOnlyCBFQP = ExpCBFQP.ego_only(
            control_models=control_models, solver=solver, plant=plant, **settings
        )
        self._cautious = self._filter
        if self._error is not None:
            settings["prediction_error"] = None
            self._cautious = ExpCBFQP.ego_only(
                control_models=control_models, solver=solver, plant=plant, **settings
            )

    def reset(self, seed: int) -> None:
        """Start a run."""
        self._filter.reset(seed=seed)
        self._cautious.reset(seed=seed)

    def check_authority(self, ego: AgentSnapshot | None) -> None:
        """Refuse an ego that declares what its box cannot do; once, as soon as it can be told.

        Args:
            ego: Its state; None before any is known.

        Raises:
            ConfigurationError: It declares a larger acceleration than its box produces.
        """
        if not self._authority_known:
            model = self._models[self._ego_uid]
            known = check_authority(model, self._bounds, snapshot=ego)
            self._authority_known = known is not None

    def barrier_values(self, agents: Mapping[str, AgentSnapshot]) -> LambdaDict:
        """Return h of every ego pair, m/s."""
        return self._filter.barrier_values(agents, self._bounds, ego_uid=self._ego_uid, dt=self._dt)

    def scores(self, ego: AgentSnapshot, due: Mapping[str, DueForecast]) -> LambdaDict:
        """Return h(forecast) - h(now) of every pair whose forecast fell due, m/s.

        The ego enters both sides as it is now: its own action is no error of the forecast.
        """
        before, after = {self._ego_uid: ego}, {self._ego_uid: ego}
        for uid, forecast in due.items():
            before[uid], after[uid] = forecast.expected, forecast.actual
        return self._filter.barrier_drops(
            before, after, self._bounds, ego_uid=self._ego_uid, dt=self._dt
        )

    def error_bounds(self, ahead: Mapping[str, Prediction]) -> LambdaDict:
        """Return how far each partner's acceleration may be from its forecast, m/s^2."""
        bounds: LambdaDict = {}
        for uid, prediction in ahead.items():
            claim = prediction.error_accel
            if claim is None:
                claim = self._models[uid].max_cartesian_accel(self._bounds)
            bounds[canonical_pair_key(self._ego_uid, uid)] = claim
        return bounds

    def decide(
        self,
        nominal: FloatArray,
        agents: dict[str, AgentSnapshot],
        ahead: Mapping[str, Prediction],
        state: SafetyState,
        previous_action: FloatArray | None,
    ) -> tuple[FloatArray, FilterInfo]:
        """Return the action closest to the nominal one that meets the rows, and the record.

        The published filter raises where no action meets them; then the ego stops, since nobody
        may execute the nominal action.

        Args:
            nominal: The policy's action, shape (A,), checked like the agents.
            agents: Every agent now.
            ahead: Forecast of every partner.
            state: Slack of the rows.
            previous_action: Action executed in the last step, shape (A,); None on the first.
        """
        chosen = self._filter if self._error is None else self._chosen(ahead, self._error)
        try:
            return chosen.filter_checked(
                nominal,
                agents,
                {uid: prediction.snapshot for uid, prediction in ahead.items()},
                state,
                self._bounds,
                ego_uid=self._ego_uid,
                dt=self._dt,
                previous_action=previous_action,
            )
        except ConcertoSafetyInfeasible:
            action = stop_action(self._models[self._ego_uid], agents[self._ego_uid], self._bounds)
            info = blank_info(state.lambda_)
            info["intervention"] = distance(action, nominal)
            return action, info

    def _chosen(self, ahead: Mapping[str, Prediction], error: float) -> EgoOnlyCBFQP:
        """Return the filter that trusts forecasts only while each keeps to the declared error."""
        claims = [prediction.error_accel for prediction in ahead.values()]
        kept = all(claim is not None and claim <= error for claim in claims)
        return self._filter if kept else self._cautious
