"""One object that guards one env: `SafetyRuntime`, fed from the env that is stepped."""

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.braking import Pair
from cadenza.safety.contracts import Bounds, EmergencyController, LambdaDict
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.runtime.env_hooks import BatchEnvHooks, EnvHooks, unwrapped
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.safety_step import RuntimeTelemetry, SafetyStep

#: What is read from one environment, or from a batch.
Hooks = TypeVar("Hooks", EnvHooks, BatchEnvHooks)


class AccelerationDriver(Generic[Hooks]):
    """What the driver of one environment and that of a batch have in common.

    Attributes:
        env: The environment whose state it reads, or the batch.
        bounds: Envelope the filter enforces.
        cartesian_accel_capacity: What lambda is compared with, m/s^2.
    """

    def __init__(self, env: object, hooks: Hooks) -> None:
        self.env: object = env
        self.bounds: Bounds = hooks.bounds
        self.cartesian_accel_capacity: float = hooks.bounds.cartesian_accel_capacity
        self._hooks: Hooks = hooks

    def reachable(self, nominal: FloatArray) -> FloatArray:
        """Return what the action's own bounds leave of it without the filter, (..., A)."""
        c = self.bounds.action_linf_component
        return np.clip(nominal, -c, c)

    def drives(self, env: object) -> bool:
        """Whether stepping ``env`` moves what the driver reads, at the step it assumes.

        Raises:
            CadenzaError: A wrapper of ``env`` says that it cannot be guarded.
        """
        if unwrapped(env) is not unwrapped(self.env):
            return False
        return type(self._hooks).of(env).control_timestep == self._hooks.control_timestep


class SafetyDriver(AccelerationDriver[EnvHooks]):
    """Guards the ego of one env.

    Build it with `from_env` from the very env that will be stepped: a driver that looks at
    another env sees a frozen scene.

    Raises:
        ConfigurationError: The ego has no control model, needs an emergency controller, or cannot
            be kept clear of the env's obstacles.
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
        super().__init__(env, hooks)
        self._ego_uid = ego_uid
        controllers = None if emergency_controller is None else {ego_uid: emergency_controller}
        self._runtime = hooks.runtime(ego_uid, options, controllers)

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
    def options(self) -> SafetyOptions:
        """The configuration."""
        return self._runtime.options

    @property
    def lambda_(self) -> LambdaDict:
        """Slack per ego pair, m/s^2; a copy."""
        return self._runtime.lambda_

    @property
    def lambda_bound(self) -> float:
        """Largest magnitude lambda may take, m/s^2."""
        return self._runtime.lambda_bound

    @property
    def partner_swaps(self) -> int:
        """How often the partner changed since `begin_run`."""
        return self._runtime.telemetry.run.counts["swaps"]

    @property
    def telemetry(self) -> RuntimeTelemetry:
        """Counters of the run and the episode, and brakes counted by reason."""
        return self._runtime.telemetry

    def begin_run(self, seed: int) -> None:
        """Forget everything: slack, partners, forecasts; ``seed`` is handed to the filter.

        Raises:
            ConfigurationError: As `begin_episode`.
        """
        self._hooks.room.require_same()
        self._runtime.begin_run(seed)

    def begin_episode(self) -> None:
        """Forget the last state, which the env's reset disconnects from the next; keep lambda.

        Raises:
            ConfigurationError: The env's obstacles are others than before.
        """
        self._hooks.room.require_same()
        self._runtime.begin_episode()

    def step(
        self,
        nominal_action: FloatArray,
        partner_id: str | None = None,
        *,
        contact_forces: Mapping[Pair, float] | None = None,
        obstacles: Iterable[Shape] | Obstacles = (),
    ) -> SafetyStep:
        """Return the action to execute in the env's current state.

        Args:
            nominal_action: The policy's action, shape (A,), any real dtype.
            partner_id: Identity of the partner; None if unknown, which never counts as a change.
            contact_forces: Measured force per pair, N; None means what the env measures, if it
                offers ``build_contact_forces``.
            obstacles: What stands around besides `SafetyOptions.obstacles` and the env's own, a
                scan for example.

        Raises:
            InputError: Action or scene is malformed or not finite, and the options do not say to
                brake then.
            TypeError: The action is not an array.
            ConfigurationError: Obstacles are given to an ego that cannot be kept clear of any.
        """
        try:
            snapshots = self._hooks.snapshots()
            if contact_forces is None:
                contact_forces = self._hooks.forces_on(self._ego_uid)
        except InputError as error:
            return self._runtime.step_blind(nominal_action, error)
        return self._runtime.step(
            nominal_action,
            snapshots,
            partner_id=partner_id,
            contact_forces=contact_forces,
            obstacles=obstacles,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, JSON-able; floats survive exactly."""
        return self._runtime.state_dict()

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            InputError: Unknown version or malformed content; the driver is then unchanged.
        """
        self._runtime.load_state_dict(payload)
