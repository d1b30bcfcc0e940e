"""Every environment of a batch behind a runtime of its own: slower, and with every option.

Axes:    B = environments, N = partners in string order, A = action.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.batched.env_hooks import BatchEnvHooks
from cadenza.safety.batched.step import SafetyBatchStep
from cadenza.safety.pairs import LambdaDict, canonical_pair_key
from cadenza.safety.protocols import EmergencyController
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime
from cadenza.safety.runtime.safety_step import SafetyStep
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot


class RowwiseEngine:
    """Decides for B environments one after the other.

    Args:
        hooks: What the batch offers.
        ego_uid: The agent to guard.
        options: Configuration.
        emergency_controller: The ego's; needed unless its action is its Cartesian acceleration.

    Raises:
        ConfigurationError: The ego needs an emergency controller.
    """

    def __init__(
        self,
        hooks: BatchEnvHooks,
        *,
        ego_uid: str,
        options: SafetyOptions,
        emergency_controller: EmergencyController | None,
    ) -> None:
        controllers = None if emergency_controller is None else {ego_uid: emergency_controller}
        self._runtimes = [
            SafetyRuntime(
                ego_uid=ego_uid,
                control_models=hooks.control_models,
                bounds=hooks.bounds,
                control_timestep=hooks.control_timestep,
                plant=hooks.plant,
                options=options,
                emergency_controllers=controllers,
            )
            for _ in range(hooks.num_envs)
        ]
        partners = sorted(uid for uid in hooks.control_models if uid != ego_uid)
        self._keys = [canonical_pair_key(ego_uid, uid) for uid in partners]

    @property
    def lambda_(self) -> FloatArray:
        """Copy of the slack per pair, shape (B, N), m/s^2."""
        return self._table([runtime.lambda_ for runtime in self._runtimes])

    @property
    def partner_swaps(self) -> NDArray[np.int64]:
        """How often each environment's partner changed since `begin_run`, shape (B,)."""
        swaps = [runtime.telemetry.run.counts["swaps"] for runtime in self._runtimes]
        return np.array(swaps, dtype=np.int64)

    def begin_run(self, seed: int) -> None:
        """Forget everything."""
        for runtime in self._runtimes:
            runtime.begin_run(seed)

    def begin_rows(self, rows: Iterable[int]) -> None:
        """Forget the last state of the environments ``rows``."""
        for row in rows:
            self._runtimes[row].begin_episode()

    def decide(
        self, nominal: FloatArray, agents: AgentBatch, partner_ids: Sequence[str | None]
    ) -> SafetyBatchStep:
        """Return the actions to execute.

        Args:
            nominal: The policy's actions, shape (B, A), float64.
            agents: Motion of all agents.
            partner_ids: Identity of each environment's partner; None if unknown.

        Raises:
            InputError: The agents are others than those with a control model, or an action is not
                finite, and the options do not say to brake then.
        """
        steps = [
            runtime.step(nominal[row], agents.snapshots(row), partner_id=partner_ids[row])
            for row, runtime in enumerate(self._runtimes)
        ]
        return self._as_batch(steps)

    def decide_rows(
        self,
        nominal: FloatArray,
        scenes: Sequence[Mapping[str, AgentSnapshot] | InputError],
        partner_ids: Sequence[str | None],
    ) -> SafetyBatchStep:
        """Return the actions to execute where the scenes are given one by one.

        Args:
            nominal: The policy's actions, shape (B, A), float64.
            scenes: Every agent of each environment, or what is wrong with its observation.
            partner_ids: Identity of each environment's partner; None if unknown.

        Raises:
            InputError: An observation or action is malformed, and the options do not say to brake
                then.
        """
        steps: list[SafetyStep] = []
        for row, (runtime, scene) in enumerate(zip(self._runtimes, scenes, strict=True)):
            if isinstance(scene, InputError):
                steps.append(runtime.step_blind(nominal[row], scene))
            else:
                steps.append(runtime.step(nominal[row], scene, partner_id=partner_ids[row]))
        return self._as_batch(steps)

    def decide_blind(self, nominal: FloatArray, error: InputError) -> SafetyBatchStep:
        """Return braking actions for a step whose observation is unusable.

        Raises:
            InputError: ``error`` itself, unless the options say to brake.
        """
        steps = [
            runtime.step_blind(nominal[row], error) for row, runtime in enumerate(self._runtimes)
        ]
        return self._as_batch(steps)

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, JSON-able; floats survive exactly."""
        return {"rows": [runtime.state_dict() for runtime in self._runtimes]}

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            InputError: Malformed content or another batch; the engine is then unchanged.
        """
        rows = payload.get("rows")
        if not isinstance(rows, list) or len(cast("list[Any]", rows)) != len(self._runtimes):
            raise InputError(
                f"BatchedSafetyDriver state: rows: expected {len(self._runtimes)} records, got "
                f"{rows!r}."
            )
        before = [runtime.state_dict() for runtime in self._runtimes]
        try:
            self._load_rows(cast("list[Mapping[str, Any]]", rows))
        except InputError:
            self._load_rows(before)
            raise

    def _load_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for runtime, state in zip(self._runtimes, rows, strict=True):
            runtime.load_state_dict(state)

    def _as_batch(self, steps: Sequence[SafetyStep]) -> SafetyBatchStep:
        def flags(name: str) -> NDArray[np.bool_]:
            return np.array([getattr(step, name) for step in steps], dtype=np.bool_)

        def stacked(name: str) -> FloatArray:
            return np.array([step.info[name] for step in steps], dtype=np.float64)

        return SafetyBatchStep(
            action=np.array([step.action for step in steps]),
            loss=self._table([step.loss or {} for step in steps]),
            scored=np.array([step.loss is not None for step in steps], dtype=np.bool_),
            braked=flags("braked"),
            infeasible=flags("infeasible"),
            uncertified=flags("uncertified"),
            intervention=np.array([step.intervention for step in steps]),
            lambda_=self._table([step.lambda_ for step in steps]),
            used_lambda=self._table([step.info["lambda"] for step in steps]),
            constraint_violation=stacked("constraint_violation"),
            margin=stacked("margin"),
            slack=stacked("slack"),
            brake_reasons={
                row: tuple(danger.reason for danger in step.dangers.values())
                for row, step in enumerate(steps)
                if step.braked
            },
            bad_input={
                row: step.bad_input for row, step in enumerate(steps) if step.bad_input is not None
            },
        )

    def _table(self, rows: Sequence[LambdaDict]) -> FloatArray:
        """Return one row per environment and one column per pair; 0 where a pair is missing."""
        return np.array([[row.get(key, 0.0) for key in self._keys] for row in rows])
