"""When the runtime asks the braking layer, and about whom.

In a step that no action makes safe it is asked about everyone; in any other only about partners
that press on the ego harder than ``Bounds.force_limit``: the other triggers fire inside the safe
set as well, where the rows are proved to be enough.
"""

from collections.abc import Mapping
from typing import cast

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.braking import RELEASE_FACTOR, BrakeDecision, Pair, maybe_brake
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.emergency import JacobianEmergencyController
from cadenza.safety.errors import EmergencyOutputError
from cadenza.safety.pairs import canonical_pair_key
from cadenza.safety.protocols import (
    AgentControlModel,
    EmergencyController,
    StateDependentControlModel,
)
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.snapshot import AgentSnapshot


class BrakeLayer:
    """Braking of one ego; remembers which pairs braked one step ago."""

    def __init__(
        self,
        *,
        ego_uid: str,
        control_models: Mapping[str, AgentControlModel],
        controllers: Mapping[str, EmergencyController] | None,
        bounds: Bounds,
        dt: float,
        options: SafetyOptions,
    ) -> None:
        self._ego_uid = ego_uid
        self._models = control_models
        self._controllers = controllers
        self._bounds = bounds
        self._dt = dt
        self._options = options
        self.forget()

    def forget(self) -> None:
        """Release every pair."""
        #: The pairs that braked one step ago.
        self.pairs: frozenset[Pair] = frozenset()
        #: What was wrong with the emergency controller's last answer; None if nothing was.
        self.problem: str | None = None

    def decide(
        self,
        action: FloatArray,
        agents: Mapping[str, AgentSnapshot],
        forces: Mapping[Pair, float] | None,
        *,
        infeasible: bool,
        previous_action: FloatArray | None,
    ) -> BrakeDecision | None:
        """Return what the braking layer says; None if it was not asked.

        Returns:
            The decision; None as well if the emergency controller's answer cannot be executed.
        """
        self.problem = None
        watched = agents
        if not infeasible:
            pressing = self._pressing(forces)
            if not pressing:
                self.forget()
                return None
            watched = {uid: agents[uid] for uid in (self._ego_uid, *pressing)}
        options = self._options
        try:
            decision = maybe_brake(
                {self._ego_uid: action},
                watched,
                bounds=self._bounds,
                tau_brake=options.tau_brake,
                emergency_controllers=self._controllers,
                dt=self._dt if options.brake_stopping else None,
                control_models=self._models if options.brake_stopping else None,
                still_braking=self.pairs if options.brake_hysteresis else (),
                latency_s=options.brake_latency_s,
                contact_forces=forces,
                previous_action=self._rate_reference(previous_action),
            )
        except EmergencyOutputError as error:
            self.forget()
            self.problem = str(error)
            return None
        self.pairs = frozenset(decision.dangers)
        return decision

    def _pressing(self, forces: Mapping[Pair, float] | None) -> list[str]:
        """Return the partners that press on the ego harder than the limit allows."""
        limit = self._bounds.force_limit
        if not forces or limit <= 0.0:
            return []
        pressing: list[str] = []
        for uid in self._models:
            if uid == self._ego_uid:
                continue
            key = canonical_pair_key(self._ego_uid, uid)
            held = key in self.pairs and self._options.brake_hysteresis
            if forces.get(key, 0.0) * (RELEASE_FACTOR if held else 1.0) > limit:
                pressing.append(uid)
        return pressing

    def _rate_reference(self, previous: FloatArray | None) -> dict[str, FloatArray] | None:
        """Return the action that an override may not leave too fast; None if it may."""
        if previous is None or self._options.rate_limit != "hard":
            return None
        return {self._ego_uid: previous}

    def state_dict(self) -> list[list[str]]:
        """Return the pairs that braked one step ago."""
        return [list(pair) for pair in sorted(self.pairs)]

    def load_state_dict(self, payload: object) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: No list of pairs, or a pair of unknown agents; nothing is changed then.
        """
        try:
            pairs = [canonical_pair_key(a, b) for a, b in cast("list[tuple[str, str]]", payload)]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"braking pairs: expected a complete record, pairs of agent ids, got {payload!r}."
            ) from error
        for pair in pairs:
            if not all(uid in self._models for uid in pair):
                raise InputError(f"braking pairs: expected known agents, got {pair}.")
        self.pairs = frozenset(pairs)


def emergency_controllers_of(
    ego_uid: str,
    models: Mapping[str, AgentControlModel],
    controllers: Mapping[str, EmergencyController] | None,
) -> Mapping[str, EmergencyController] | None:
    """Return the controllers to brake with: the given ones, or what fits the ego's model.

    None stands for pushes in Cartesian acceleration.

    Raises:
        ConfigurationError: The ego has no control model, or nothing given fits it.
    """
    if ego_uid not in models:
        raise ConfigurationError(
            f"SafetyRuntime: expected a control model of the ego {ego_uid!r}, got {sorted(models)}."
        )
    model = models[ego_uid]
    if controllers is None and not isinstance(model, DoubleIntegratorControlModel):
        if isinstance(model, StateDependentControlModel):
            return {ego_uid: JacobianEmergencyController(control_model=model)}
        raise ConfigurationError(
            f"SafetyRuntime: the action of {ego_uid!r} is no Cartesian acceleration; "
            "pass the emergency_controller of its embodiment."
        )
    if controllers is not None and ego_uid not in controllers:
        raise ConfigurationError(
            f"SafetyRuntime: expected an emergency controller of {ego_uid!r}, "
            f"got {sorted(controllers)}."
        )
    return controllers
