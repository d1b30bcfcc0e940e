"""One object that guards the ego in each of many environments stepped as one.

Each environment is treated as `cadenza.safety.runtime.driver.SafetyDriver` treats its one: own
lambda, own warm-up, own episode boundaries, own partner. Where options and ego allow it, all
environments are decided together (`VectorEngine`), otherwise one after the other (`RowwiseEngine`);
so are those whose batch tells the ages of packets.

Axes:      B = environments, N = partners in string order, A = action.
Units:     as in `cadenza.safety.runtime.runtime`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.checks import real_array
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.backup.batched import obstacles_of_each
from cadenza.safety.batched.engine import (
    SafetyBatchStep,
    VectorEngine,
    follows,
    require_entries,
)
from cadenza.safety.contracts import EmergencyController, LambdaDict, canonical_pair_key
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.geometry import Obstacles
from cadenza.safety.runtime.driver import AccelerationDriver
from cadenza.safety.runtime.env_hooks import BatchEnvHooks, SceneOrError, scenes_of
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime, require_parts
from cadenza.safety.runtime.safety_step import SafetyStep

#: Version of `BatchedSafetyDriver.state_dict`; a reader refuses any other.
BATCH_STATE_VERSION: Final = 1


class RowwiseEngine:
    """Decides for B environments one after the other; see `BatchedSafetyDriver`."""

    def __init__(
        self,
        hooks: BatchEnvHooks,
        *,
        ego_uid: str,
        options: SafetyOptions,
        controllers: Mapping[str, EmergencyController] | None,
    ) -> None:
        self._hooks, self._options, self._controllers = hooks, options, controllers
        self._uids = (ego_uid, *hooks.partners_of(ego_uid))
        self._keys = [canonical_pair_key(ego_uid, uid) for uid in self._uids[1:]]
        self._runtimes = self._fresh()

    def _fresh(self) -> list[SafetyRuntime]:
        """Return the runtimes at the start of a run; what one logs, the others do not repeat."""
        hooks, parts = self._hooks, (self._uids[0], self._options, self._controllers)
        runtimes = [hooks.runtime(*parts) for _ in range(hooks.num_envs)]
        for runtime in runtimes:
            runtime.told = runtimes[0].told
        return runtimes

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

    def begin_run_rows(self, rows: Iterable[int], seeds: Iterable[int]) -> None:
        """Forget everything of the environments ``rows``."""
        for row, seed in zip(rows, seeds, strict=True):
            self._runtimes[row].begin_run(seed)
            self._runtimes[row].begin_episode()

    def begin_rows(self, rows: Iterable[int]) -> None:
        """Forget the last state of the environments ``rows``."""
        for row in rows:
            self._runtimes[row].begin_episode()

    def decide(
        self,
        nominal: FloatArray,
        scenes: Sequence[SceneOrError],
        partner_ids: Sequence[str | None],
    ) -> SafetyBatchStep:
        """Return the actions to execute.

        Args:
            nominal: Actions, shape (B, A).
            scenes: Of each environment, or what is wrong with it.
            partner_ids: Of each environment.
        """
        around: list[Obstacles] | list[tuple[()]] = [()] * len(self._runtimes)
        if self._hooks.obstacles is not None:
            try:
                around = obstacles_of_each(self._hooks.obstacles(), len(self._runtimes))
            except InputError as error:
                scenes = [error] * len(self._runtimes)
        steps: list[SafetyStep] = []
        for row, (runtime, scene) in enumerate(zip(self._runtimes, scenes, strict=True)):
            if isinstance(scene, InputError):
                steps.append(runtime.step_blind(nominal[row], scene))
                continue
            steps.append(
                runtime.step(
                    nominal[row], scene, partner_id=partner_ids[row], obstacles=around[row]
                )
            )
        return self._as_batch(steps)

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, JSON-able; floats survive exactly."""
        return {"rows": [runtime.state_dict() for runtime in self._runtimes]}

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the engine is unchanged after an InputError."""
        rows = require_entries("rows", payload.get("rows"), len(self._runtimes), "records")
        runtimes = self._fresh()
        for runtime, state in zip(runtimes, rows, strict=True):
            runtime.load_state_dict(state)
        self._runtimes = runtimes

    def _as_batch(self, steps: Sequence[SafetyStep]) -> SafetyBatchStep:
        def flags(name: str) -> NDArray[np.bool_]:
            return np.array([getattr(step, name) for step in steps], dtype=np.bool_)

        def of_info(name: str) -> FloatArray:
            return np.array([step.info[name] for step in steps], dtype=np.float64)

        return SafetyBatchStep(
            action=np.array([step.action for step in steps]),
            loss=self._table([step.loss or {} for step in steps]),
            scored=np.array([step.loss is not None for step in steps], dtype=np.bool_),
            braked=flags("braked"),
            infeasible=flags("infeasible"),
            uncertified=flags("uncertified"),
            breached=np.array([[uid in step.breached for uid in self._uids] for step in steps]),
            intervention=np.array([step.intervention for step in steps]),
            lambda_=self._table([step.lambda_ for step in steps]),
            used_lambda=self._table([step.info["lambda"] for step in steps]),
            constraint_violation=of_info("constraint_violation"),
            margin=of_info("margin"),
            slack=of_info("slack"),
            brake_reasons={
                row: tuple(danger.reason for danger in step.dangers.values())
                for row, step in enumerate(steps)
                if step.braked
            },
            bad_input={
                row: step.bad_input for row, step in enumerate(steps) if step.bad_input is not None
            },
            reason={row: step.reason for row, step in enumerate(steps) if step.reason},
            **(_static(steps) if any("static_margin" in step.info for step in steps) else {}),
        )

    def _table(self, rows: Sequence[LambdaDict]) -> FloatArray:
        """Return one column per pair; 0 where a pair is missing."""
        return np.array([[row.get(key, 0.0) for key in self._keys] for row in rows])


def _static(steps: Sequence[SafetyStep]) -> dict[str, Any]:
    """Return the entries of a record beside obstacles."""
    margins = [min(step.info.get("static_margin", ()), default=math.inf) for step in steps]
    uncertified = [step.info.get("static_uncertified", False) for step in steps]
    return {
        "static_margin": np.array(margins),
        "static_uncertified": np.array(uncertified, dtype=np.bool_),
    }


class BatchedSafetyDriver(AccelerationDriver[BatchEnvHooks]):
    """Guards the ego of every environment of a batch.

    Build it with `from_env` from the very batch that will be stepped. Tell it with `begin_rows`
    which environments began another episode, as those that reset themselves do: no forecast is
    scored across a reset.

    Args:
        env: The batch that is stepped.
        hooks: What it offers.
        ego_uid: The agent to guard.
        options: Configuration.
        emergency_controller: Turns a push into the ego's action; needed unless the ego's action
            is its Cartesian acceleration.
        max_rows: Most environments decided in one pass, see `BatchedEgoFilter`.

    Attributes:
        num_envs: B.
        partner_uids: Partners, in string order.
        lambda_bound: Largest magnitude lambda may take, m/s^2.

    Raises:
        ConfigurationError: The ego has no control model or needs an emergency controller, or there
            is no partner.
    """

    def __init__(
        self,
        env: object,
        hooks: BatchEnvHooks,
        *,
        ego_uid: str,
        options: SafetyOptions,
        emergency_controller: EmergencyController | None = None,
        max_rows: int | None = None,
    ) -> None:
        controllers = None if emergency_controller is None else {ego_uid: emergency_controller}
        require_parts(ego_uid, hooks.control_models, hooks.bounds, options, controllers)
        if ego_uid not in hooks.control_models or len(hooks.control_models) == 1:
            raise ConfigurationError(
                f"BatchedSafetyDriver: expected control models of the ego {ego_uid!r} and of at "
                f"least one partner, got {sorted(hooks.control_models)}."
            )
        self.partner_uids: tuple[str, ...] = hooks.partners_of(ego_uid)
        super().__init__(env, hooks)
        self.num_envs: int = hooks.num_envs
        self.lambda_bound: float = options.clamp_floor_ratio * self.cartesian_accel_capacity
        self._options, self._controllers = options, controllers
        self._ego_uid, self._action_dim = ego_uid, hooks.control_models[ego_uid].action_dim
        self._engine: VectorEngine | RowwiseEngine
        accelerates = isinstance(hooks.control_models[ego_uid], DoubleIntegratorControlModel)
        together = hooks.obstacles is None and follows(hooks.room.beside(options))
        if controllers is None and accelerates and together:
            self._engine = VectorEngine(hooks, ego_uid=ego_uid, options=options, max_rows=max_rows)
        else:
            self._engine = self._rowwise_engine()
        self._seed = 0
        self._untouched = True

    @classmethod
    def from_env(
        cls,
        vector_env: object,
        *,
        ego_uid: str,
        options: SafetyOptions | None = None,
        emergency_controller: EmergencyController | None = None,
        max_rows: int | None = None,
    ) -> "BatchedSafetyDriver":
        """Return the driver of a batch with the hooks of `cadenza.safety.runtime.env_hooks`.

        Raises:
            ConfigurationError: A hook is missing or the class refuses the combination.
        """
        return cls(
            vector_env,
            BatchEnvHooks.of(vector_env),
            ego_uid=ego_uid,
            options=SafetyOptions() if options is None else options,
            emergency_controller=emergency_controller,
            max_rows=max_rows,
        )

    @property
    def lambda_(self) -> FloatArray:
        """Copy of the slack per pair, shape (B, N), m/s^2."""
        return self._engine.lambda_

    @property
    def partner_swaps(self) -> NDArray[np.int64]:
        """How often each environment's partner changed since `begin_run`, shape (B,)."""
        return self._engine.partner_swaps

    @property
    def vectorised(self) -> bool:
        """Whether all environments are decided together; packet ages end that at the first step."""
        return isinstance(self._engine, VectorEngine)

    def begin_run(self, seed: int) -> None:
        """Forget everything: slack, partners, forecasts; ``seed`` is handed to the filters.

        This and whatever begins an episode asks for ``build_obstacles()`` again.

        Raises:
            ConfigurationError: The obstacles are others than before.
        """
        self._hooks.room.require_same()
        self._seed, self._untouched = seed, True
        self._engine.begin_run(seed)

    def begin_run_rows(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Let a run begin in the environments ``rows``, of one seed each; the others go on."""
        self._hooks.room.require_same()
        self._engine.begin_run_rows(rows, seeds)

    def begin_episode(self) -> None:
        """Forget the last state of every environment; keep lambda."""
        self.begin_rows(range(self.num_envs))

    def begin_rows(self, rows: Iterable[int]) -> None:
        """Forget the last state of the environments ``rows``, which a reset disconnects."""
        begun = list(rows)
        if begun:
            self._hooks.room.require_same()
        self._engine.begin_rows(begun)

    def step(
        self,
        nominal_action: NDArray[Any],
        partner_ids: str | Sequence[str | None] | None = None,
    ) -> SafetyBatchStep:
        """Return the actions to execute in the batch's current state.

        Args:
            nominal_action: The policy's actions, shape (B, A), any real dtype.
            partner_ids: Identity of the partner of all environments, or of each; None if unknown,
                which never counts as a change.

        Raises:
            InputError: Actions or scene are malformed or not finite, and the options do not say to
                brake then; or there is not one identity per environment; or the batch tells packet
                ages that it did not tell in the first step.
        """
        nominal = self._nominal(nominal_action)
        ids = self._one_id_per_env(partner_ids)
        if isinstance(self._engine, RowwiseEngine):
            return self._engine.decide(nominal, self._hooks.scenes(), ids)
        agents = self._hooks.agents()
        if agents.ages_s is not None:
            self._engine = self._follow_ages()
            return self._engine.decide(nominal, scenes_of(agents), ids)
        self._untouched = False
        return self._engine.decide(nominal, agents, ids)

    def _rowwise_engine(self) -> RowwiseEngine:
        return RowwiseEngine(
            self._hooks,
            ego_uid=self._ego_uid,
            options=self._options,
            controllers=self._controllers,
        )

    def _follow_ages(self) -> RowwiseEngine:
        """Return what decides one environment after the other: only runtimes watch packet ages."""
        if not self._untouched:
            raise InputError(
                "BatchedSafetyDriver.step: AgentBatch.ages_s: expected ages in every step or in "
                "none, got them after steps without; pass zeros while all packets are current."
            )
        engine = self._rowwise_engine()
        engine.begin_run(self._seed)
        return engine

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, JSON-able; floats survive exactly."""
        return {
            "version": BATCH_STATE_VERSION,
            "engine": type(self._engine).__name__,
            "state": self._engine.state_dict(),
        }

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            InputError: Unknown version, malformed content, or another batch or configuration; the
                driver is then unchanged.
        """
        version, engine = payload.get("version"), payload.get("engine")
        target = self._engine
        if engine == RowwiseEngine.__name__ and isinstance(target, VectorEngine):
            target = self._rowwise_engine()  # the run it was saved in knew packet ages
        expected = type(target).__name__
        if version != BATCH_STATE_VERSION or engine != expected:
            raise InputError(
                f"BatchedSafetyDriver state: expected version {BATCH_STATE_VERSION} of {expected}, "
                f"got {version!r} of {engine!r}."
            )
        state = payload.get("state")
        if not isinstance(state, Mapping):
            raise InputError(f"BatchedSafetyDriver state: expected a record, got {state!r}.")
        target.load_state_dict(state)  # pyright: ignore[reportUnknownArgumentType] -- JSON
        self._engine, self._untouched = target, False

    def _nominal(self, nominal_action: object) -> FloatArray:
        name = "BatchedSafetyDriver.step: nominal_action"
        nominal = np.array(real_array(name, nominal_action), dtype=np.float64)
        require_shape(name, nominal, (self.num_envs, self._action_dim))
        return nominal

    def _one_id_per_env(self, partner_ids: str | Sequence[str | None] | None) -> list[str | None]:
        if partner_ids is None or isinstance(partner_ids, str):
            return [partner_ids] * self.num_envs
        ids = list(partner_ids)
        if len(ids) != self.num_envs:
            raise InputError(
                f"BatchedSafetyDriver.step: expected one partner id for each of {self.num_envs} "
                f"environments, got {len(ids)}."
            )
        return ids
