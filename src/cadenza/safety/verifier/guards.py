"""The filter under test, behind one call; and the single-environment filter it must agree with.

Axes:  B episodes, N partners, d Cartesian dimensions.
Units: m, m/s, m/s^2, s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.safety.contracts import MIN_BOUND, Bounds, SafetyState, make_ego_pair_keys
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.verifier.adversaries import BoolArray
from cadenza.safety.verifier.conditions import Condition, authority_left
from cadenza.safety.verifier.config import Scenario, VerifierConfig

#: Largest change of the action between two steps, m/s^2: none is asked for.
_ANY_RATE = 1e9
#: Id of the ego; partners are p00, p01, ..., whose string order is their order.
EGO = "ego"


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """Input of the filter in one step; copies, which it may keep or change."""

    nominal: FloatArray  # Nominal actions, shape (B, d), m/s^2
    ego_position: FloatArray  # Shape (B, d), m
    ego_velocity: FloatArray  # Shape (B, d), m/s
    positions: FloatArray  # Partners' centres as measured, shape (B, N, d), m
    velocities: FloatArray  # Their velocities as measured, shape (B, N, d), m/s
    ages_s: FloatArray  # Age of each measurement, shape (B, N), s
    #: Whether the episodes begin with this step, shape (B,): time to forget the ones before; None
    #: for steps that nothing precedes
    begins: BoolArray | None = None

    def agents(
        self, episode: int, partners: Sequence[str], ego_radius: float, radius: float
    ) -> dict[str, AgentSnapshot]:
        """Return the ego and its partners as a filter of one environment sees them."""
        ego = AgentSnapshot(self.ego_position[episode], self.ego_velocity[episode], ego_radius)
        found = {EGO: ego}
        for j, uid in enumerate(partners):
            x, v, age_s = (a[episode, j] for a in (self.positions, self.velocities, self.ages_s))
            found[uid] = AgentSnapshot(x, v, radius, float(age_s))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What the filter returned."""

    action: FloatArray  # Shape (B, d), m/s^2
    solved: BoolArray  # Whether the action meets every row, says the filter, shape (B,)
    #: Whether the filter says that its guarantee does not cover the step, (B,)
    uncertified: BoolArray
    #: What the filter remembered when it was asked, shape (B, N, d); None if it has no memory
    directions: FloatArray | None = None


#: A filter of B episodes.
Guard: TypeAlias = Callable[[Sight], Answer]
#: Builds the filter of a scenario.
GuardFactory: TypeAlias = Callable[[Scenario, VerifierConfig], Guard]


def scenario_bounds(scenario: Scenario) -> Bounds:
    """Return the envelope of a scenario: capacity and box are the same number."""
    return Bounds(scenario.ego_accel, scenario.ego_accel, _ANY_RATE, 0.0, 0.0)


def scenario_models(
    scenario: Scenario, config: VerifierConfig
) -> tuple[DoubleIntegratorControlModel, list[DoubleIntegratorControlModel]]:
    """Return the control models of the ego and of the partners.

    The original credits every agent with the shared capacity, so its partners declare none.
    """
    declared = None if config.compat == "upstream" else scenario.partner_accel
    return DoubleIntegratorControlModel(EGO, scenario.dim), [
        DoubleIntegratorControlModel(f"p{j:02d}", scenario.dim, capacity=declared)
        for j in range(scenario.partners)
    ]


def filter_options(scenario: Scenario, config: VerifierConfig) -> dict[str, Any]:
    """Return the options that both filters are built with."""
    return {
        "cbf_gamma": config.cbf_gamma,
        "plant": scenario.filter_plant,
        "margin_m": config.margin_m,
        "barrier": config.barrier,
        "compat": config.compat,
        # The row of the original has no guarantee that an age could extend.
        "max_age_s": scenario.max_age_s if config.barrier == "sampled" else 0.0,
        "position_error": config.position_error,
        "velocity_error": config.velocity_error,
    } | (
        {"multi_partner": "passive", "contact_speed": config.contact_speed}
        if scenario.passive
        else {}
    )


def scenario_condition(scenario: Scenario, config: VerifierConfig) -> Condition:
    """Return what the filter of a scenario promises, for the independent check.

    Raises:
        ConfigurationError: The declared age leaves the ego no authority.
    """
    contact, push = config.contact_m + config.margin_m, scenario.partner_accel
    alpha = authority_left(
        ego_accel=scenario.ego_accel,
        partner_accel=push,
        dim=scenario.dim,
        contact_m=contact,
        dt=scenario.dt,
        # Along a remembered direction an age costs no authority.
        max_age_s=0.0 if config.measures else scenario.max_age_s,
    )
    if not alpha >= MIN_BOUND:
        raise ConfigurationError(
            f"verifier: max_age_s: expected packets fresh enough to leave the ego authority, got "
            f"{scenario.max_age_s:g} s, which leaves {alpha:.3g} m/s^2 of {scenario.ego_accel:g} "
            f"against a partner of {push:g} m/s^2; lower max_age_s or partner_accel."
        )
    return Condition(
        plant=scenario.filter_plant,
        dt=scenario.dt,
        alpha=alpha,
        push=push,
        relative_accel=float(np.sqrt(scenario.dim)) * scenario.ego_accel + push,
        contact_m=contact,
        gamma=config.cbf_gamma,
        box=scenario.ego_accel,
    )


def built_guard(scenario: Scenario, config: VerifierConfig) -> Guard:
    """Return the filter of a scenario: batched, or row by row for the row of the original."""
    if config.barrier == "wae":
        return SingleFilter(scenario, config).guard
    return batched_guard(scenario, config)


def batched_guard(scenario: Scenario, config: VerifierConfig) -> Guard:
    """Return the batched filter of a scenario."""
    from torch import as_tensor, float64, full, inference_mode

    from cadenza.safety.batched import BatchedEgoFilter
    from cadenza.safety.batched.projection import INFEASIBLE

    ego_model, partner_models = scenario_models(scenario, config)
    batched = BatchedEgoFilter(
        ego_model=ego_model,
        partner_models=partner_models,
        bounds=scenario_bounds(scenario),
        dt=scenario.dt,
        **filter_options(scenario, config),
    )
    radii = full((scenario.partners,), config.partner_radius, dtype=float64)
    memory: list[Any] = [None]

    def guard(sight: Sight) -> Answer:
        if sight.begins is None or bool(sight.begins.all()):
            memory[0] = None
        with inference_mode():
            step = batched.filter(
                as_tensor(sight.nominal),
                as_tensor(sight.ego_position),
                as_tensor(sight.ego_velocity),
                as_tensor(sight.positions),
                as_tensor(sight.velocities),
                config.ego_radius,
                radii,
                age_s=as_tensor(sight.ages_s),
                directions=memory[0],
            )
        before, memory[0] = memory[0], step.directions if config.measures else None
        return Answer(
            step.action.numpy().copy(),
            (step.status < INFEASIBLE).numpy(),
            step.uncertified.numpy(),
            None if before is None else before.numpy(),
        )

    return guard


class SingleFilter:
    """The filter of one environment, asked about one episode of a batch at a time."""

    def __init__(self, scenario: Scenario, config: VerifierConfig) -> None:
        from cadenza.safety.filters.compat import ego_filter

        ego_model, partner_models = scenario_models(scenario, config)
        self._uids = [model.uid for model in partner_models]
        self._filter = ego_filter(
            control_models={model.uid: model for model in (ego_model, *partner_models)},
            **filter_options(scenario, config),
        )
        self._bounds = scenario_bounds(scenario)
        self._state = SafetyState(dict.fromkeys(make_ego_pair_keys(EGO, self._uids), 0.0))
        self._radii = (config.ego_radius, config.partner_radius)
        self._dt = scenario.dt

    def guard(self, sight: Sight) -> Answer:
        """Return what the filter answers in every episode; one that raises executes the nominal."""
        action = sight.nominal.copy()
        solved = np.zeros(len(action), bool)
        uncertified = np.ones(len(action), bool)
        for episode in range(len(action)):
            answered = self._step(sight, None, episode)
            if answered is not None:
                action[episode], solved[episode], uncertified[episode] = answered
        return Answer(action, solved, uncertified)

    def disagreement(self, sight: Sight, answer: Answer, episode: int) -> float:
        """Return the largest difference to the batched action, m/s^2; inf if verdicts differ."""
        answered = self._step(sight, answer.directions, episode)
        if answered is None:
            return np.inf if answer.solved[episode] else 0.0
        action, solved, _ = answered
        if solved != bool(answer.solved[episode]):
            return np.inf
        return float(np.abs(action - answer.action[episode]).max())

    def _step(
        self, sight: Sight, directions: FloatArray | None, episode: int
    ) -> tuple[FloatArray, bool, bool] | None:
        """Return action, whether it meets every row, and the flag; None if the filter raises."""
        agents = sight.agents(episode, self._uids, *self._radii)
        self._filter.reset()
        if directions is not None:
            found = zip(self._uids, directions[episode].tolist(), strict=True)
            self._filter.directions.kept = {uid: tuple(k) for uid, k in found if any(k)}
        try:
            action, info = self._filter.filter(
                sight.nominal[episode],
                {"agent_states": agents},
                self._state,
                self._bounds,
                ego_uid=EGO,
                partner_predicted_states=agents,
                dt=self._dt,
            )
        except ConcertoSafetyInfeasible:
            return None
        return action, info["status"] in ("inactive", "optimal"), info["uncertified"]
