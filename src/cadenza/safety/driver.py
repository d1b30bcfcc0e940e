"""One object that guards one env: snapshots, conformal update, filter, braking, per step.

Order of a step:
    1. snapshots of the env that is stepped;
    2. a changed partner id starts the conformal layer over;
    3. the forecast of the last step is scored and moves lambda;
    4. the filter projects the nominal action onto the rows;
    5. only if no action meets every row, and contact is imminent, braking replaces the action.
Braking comes after the filter on purpose. Its triggers also fire inside the safe set, where the
row is proved to be enough; firing there would throw the ego back whenever it passes a partner
slowly at a small distance. And while contact is not imminent the least-violation action is the
better retreat: it weighs every partner, a push away only those it flees from.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.braking import BrakeDecision, Pair, maybe_brake
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.conformal import (
    constant_velocity_predict,
    reset_on_partner_swap,
    update_margin,
)
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.ego_only import EgoOnlyCBFQP
from cadenza.safety.env_hooks import EnvHooks, unwrapped
from cadenza.safety.options import SafetyOptions
from cadenza.safety.pairs import LambdaDict
from cadenza.safety.protocols import EmergencyController
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.state import FilterInfo, SafetyState

#: Version of `SafetyDriver.state_dict`; a reader refuses any other.
DRIVER_STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SafetyStep:
    """What the driver decided for one control step.

    Attributes:
        action: Action to execute, shape (A,), float64; the nominal values, bit for bit, when
            nothing was active.
        info: Record of the filter, with the loss and the braking flag filled in.
        loss: Forecast error per pair, max(0, score), m/s; None on the first step of an episode.
        braked: The emergency controller's action is executed.
        infeasible: No action met every row.
        uncertified: The invariance certificate does not cover this step.
        intervention: Euclidean distance between executed and nominal action.
        lambda_: Slack per pair after this step's update, m/s^2.
    """

    action: FloatArray
    info: FilterInfo
    loss: LambdaDict | None
    braked: bool
    infeasible: bool
    uncertified: bool
    intervention: float
    lambda_: LambdaDict


class SafetyDriver:
    """Guards the ego of one env.

    Build it with `from_env` from the very env that will be stepped: a driver that looks at
    another env sees a frozen scene.

    Args:
        env: The env that is stepped.
        hooks: What it offers.
        ego_uid: The agent to guard.
        options: Configuration.
        emergency_controller: Turns a push into the ego's action; needed unless the ego's action
            is its Cartesian acceleration.

    Raises:
        ConfigurationError: The ego has no control model, or needs an emergency controller.
    """

    def __init__(
        self,
        env: object,
        hooks: EnvHooks,
        *,
        ego_uid: str,
        options: SafetyOptions,
        emergency_controller: EmergencyController | None = None,
    ) -> None:
        if ego_uid not in hooks.control_models:
            raise ConfigurationError(
                f"SafetyDriver: expected a control model of the ego {ego_uid!r}, "
                f"got {sorted(hooks.control_models)}."
            )
        if emergency_controller is None and not isinstance(
            hooks.control_models[ego_uid], DoubleIntegratorControlModel
        ):
            raise ConfigurationError(
                f"SafetyDriver: the action of {ego_uid!r} is no Cartesian acceleration; "
                "pass the emergency_controller of its embodiment."
            )
        self._env = env
        self._hooks = hooks
        self._ego_uid = ego_uid
        self._options = options
        self._controllers = (
            None if emergency_controller is None else {ego_uid: emergency_controller}
        )
        self._filter: EgoOnlyCBFQP = ExpCBFQP.ego_only(
            control_models=hooks.control_models,
            cbf_gamma=options.cbf_gamma,
            plant=hooks.plant,
            margin_m=options.margin_m,
        )
        self._start_over()

    @classmethod
    def from_env(
        cls,
        env: object,
        *,
        ego_uid: str,
        options: SafetyOptions,
        emergency_controller: EmergencyController | None = None,
    ) -> "SafetyDriver":
        """Return the driver of ``env``.

        Raises:
            ConfigurationError: The env offers no safety hooks, or see the class.
        """
        return cls(
            env,
            EnvHooks.of(env),
            ego_uid=ego_uid,
            options=options,
            emergency_controller=emergency_controller,
        )

    @property
    def env(self) -> object:
        """The env whose state the driver reads."""
        return self._env

    @property
    def bounds(self) -> Bounds:
        """Envelope of the task."""
        return self._hooks.bounds

    @property
    def lambda_(self) -> LambdaDict:
        """Slack per ego pair, m/s^2; a copy."""
        return dict(self._state.lambda_)

    @property
    def cartesian_accel_capacity(self) -> float:
        """Capacity that lambda is compared with, m/s^2."""
        return self._hooks.bounds.cartesian_accel_capacity

    @property
    def lambda_bound(self) -> float:
        """Largest magnitude lambda may take, m/s^2."""
        return self._options.clamp_floor_ratio * self.cartesian_accel_capacity

    @property
    def partner_swaps(self) -> int:
        """How often the partner changed since `begin_run`."""
        return self._partner_swaps

    def drives(self, env: object) -> bool:
        """Whether stepping ``env`` moves what the driver reads, at the step it assumes.

        Raises:
            CadenzaError: A wrapper of ``env`` says that it cannot be guarded.
        """
        if unwrapped(env) is not unwrapped(self._env):
            return False
        return EnvHooks.of(env).control_timestep == self._hooks.control_timestep

    def begin_run(self, seed: int) -> None:
        """Forget everything: slack, partner, forecasts; ``seed`` is handed to the filter."""
        self._filter.reset(seed=seed)
        self._start_over()

    def begin_episode(self) -> None:
        """Forget the last state, which the env's reset disconnects from the next; keep lambda."""
        self._predicted: dict[str, AgentSnapshot] | None = None
        self._braking_pairs: frozenset[Pair] = frozenset()

    def step(self, nominal_action: FloatArray, partner_id: str | None = None) -> SafetyStep:
        """Return the action to execute in the env's current state.

        Args:
            nominal_action: The policy's action, shape (A,), any real dtype.
            partner_id: Identity of the partner; None if unknown, which never counts as a change.

        Raises:
            InputError: The action is malformed or not finite.
        """
        snapshots = self._hooks.snapshots()
        self._notice_partner(partner_id)
        loss = self._update_conformal(snapshots)
        predicted = {
            uid: constant_velocity_predict(snapshot, self._hooks.control_timestep)
            for uid, snapshot in snapshots.items()
            if uid != self._ego_uid
        }
        action, info = self._filter.filter(
            nominal_action,
            {"agent_states": snapshots},
            self._state,
            self._hooks.bounds,
            ego_uid=self._ego_uid,
            partner_predicted_states=predicted,
            dt=self._hooks.control_timestep,
        )
        infeasible = info["status"] not in ("inactive", "optimal")
        braked = False
        if infeasible:
            decision = self._brake(action, snapshots)
            braked = decision.fired
            if decision.override is not None:
                action = decision.override[self._ego_uid]
                info["intervention"] = math.dist(action.tolist(), nominal_action.tolist())
        else:
            self._braking_pairs = frozenset()
        self._predicted = predicted
        info["prediction_gap_loss"] = loss
        info["fallback_fired"] = braked
        return SafetyStep(
            action=action,
            info=info,
            loss=loss,
            braked=braked,
            infeasible=infeasible,
            uncertified=info["uncertified"],
            intervention=info["intervention"],
            lambda_=self.lambda_,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, JSON-able; floats survive exactly."""
        predicted = self._predicted
        return {
            "version": DRIVER_STATE_VERSION,
            "safety_state": self._state.to_dict(),
            "partner_id": self._partner_id,
            "partner_swaps": self._partner_swaps,
            "predicted": None
            if predicted is None
            else {uid: _snapshot_to_dict(snapshot) for uid, snapshot in predicted.items()},
            "braking_pairs": [list(pair) for pair in sorted(self._braking_pairs)],
        }

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            InputError: Unknown version or malformed content; the driver is then unchanged.
        """
        if payload.get("version") != DRIVER_STATE_VERSION:
            raise InputError(
                f"SafetyDriver state: expected version {DRIVER_STATE_VERSION}, "
                f"got {payload.get('version')!r}."
            )
        try:
            state = SafetyState.from_dict(payload["safety_state"])
            partner_id: str | None = payload["partner_id"]
            partner_swaps = int(payload["partner_swaps"])
            forecast: dict[str, Any] | None = payload["predicted"]
            predicted = (
                None
                if forecast is None
                else {uid: AgentSnapshot(**fields) for uid, fields in forecast.items()}
            )
            braking_pairs = frozenset((str(a), str(b)) for a, b in payload["braking_pairs"])
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"SafetyDriver state: expected a complete record: {error!r}"
            ) from error
        if state.lambda_.keys() != self._state.lambda_.keys():
            raise InputError(
                f"SafetyDriver state: expected the pairs {sorted(self._state.lambda_)}, "
                f"got {sorted(state.lambda_)}."
            )
        self._state = state
        self._partner_id = partner_id
        self._partner_swaps = partner_swaps
        self._predicted = predicted
        self._braking_pairs = braking_pairs

    def _start_over(self) -> None:
        self._state = SafetyState({}, epsilon=self._options.miss_rate, eta=self._options.eta)
        self._reset_slack()
        self._partner_id: str | None = None
        self._partner_swaps = 0
        self.begin_episode()

    def _reset_slack(self) -> None:
        reset_on_partner_swap(
            self._state,
            uids=self._hooks.control_models,
            lambda_safe=self._options.lambda_safe,
            n_warmup_steps=self._options.n_warmup_steps,
            ego_uid=self._ego_uid,
        )

    def _notice_partner(self, partner_id: str | None) -> None:
        """Start the conformal layer over when another partner took the seat."""
        if partner_id is None or partner_id == self._partner_id:
            return
        if self._partner_id is not None:
            self._partner_swaps += 1
            self._reset_slack()
            self._predicted = None
        self._partner_id = partner_id

    def _update_conformal(self, snapshots: Mapping[str, AgentSnapshot]) -> LambdaDict | None:
        """Score the last forecast of the partners and move lambda; return the loss.

        The ego enters both sides as it is now: its own action is no error of the forecast.
        """
        if self._predicted is None:
            return None
        forecast = {self._ego_uid: snapshots[self._ego_uid], **self._predicted}
        dt = self._hooks.control_timestep
        expected = self._filter.barrier_values(forecast, self.bounds, ego_uid=self._ego_uid, dt=dt)
        actual = self._filter.barrier_values(snapshots, self.bounds, ego_uid=self._ego_uid, dt=dt)
        scores = {key: expected[key] - actual[key] for key in actual}
        update_margin(
            self._state,
            scores,
            gamma=self._options.cbf_gamma,
            lambda_bound=self.lambda_bound,
        )
        return {key: max(0.0, score) for key, score in scores.items()}

    def _brake(self, action: FloatArray, snapshots: Mapping[str, AgentSnapshot]) -> BrakeDecision:
        """Ask the braking layer whether contact is imminent; partners are obstacles to it.

        Its stopping test stays off: whether the ego can still stop is what the rows decided.
        """
        decision = maybe_brake(
            {self._ego_uid: action},
            snapshots,
            bounds=self.bounds,
            tau_brake=self._options.tau_brake,
            emergency_controllers=self._controllers,
            still_braking=self._braking_pairs,
        )
        self._braking_pairs = frozenset(decision.dangers)
        return decision


def _snapshot_to_dict(snapshot: AgentSnapshot) -> dict[str, Any]:
    return {
        "position": snapshot.position.tolist(),
        "velocity": snapshot.velocity.tolist(),
        "radius": snapshot.radius,
    }
