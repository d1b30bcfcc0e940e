"""One object that guards the ego in each of many environments stepped as one.

Each environment is treated as `cadenza.safety.runtime.driver.SafetyDriver` treats its one: own
lambda, own warm-up, own episode boundaries, own partner. Where options and ego allow it, all
environments are decided together (`VectorEngine`), otherwise one after the other (`RowwiseEngine`);
so are those whose batch tells the ages of packets.

Axes:    B = environments, N = partners in string order, A = action.
Units:   as in `cadenza.safety.runtime.runtime`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.checks import real_array
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.batched.vector_engine import SafetyBatchStep, VectorEngine, is_vectorised
from cadenza.safety.contracts import Bounds, EmergencyController, LambdaDict, canonical_pair_key
from cadenza.safety.runtime.env_hooks import BatchEnvHooks, unwrapped
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime, require_parts
from cadenza.safety.runtime.safety_step import SafetyStep
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot

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
        for runtime in self._runtimes:
            runtime.told = self._runtimes[0].told
        partners = sorted(uid for uid in hooks.control_models if uid != ego_uid)
        self._uids = (ego_uid, *partners)
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
        self, nominal: FloatArray, agents: AgentBatch, partner_ids: Sequence[str | None]
    ) -> SafetyBatchStep:
        """Return the actions to execute; ``nominal`` is (B, A), one partner id per environment."""
        scenes = [agents.snapshots(row) for row in range(len(self._runtimes))]
        return self.decide_rows(nominal, scenes, partner_ids)

    def decide_rows(
        self,
        nominal: FloatArray,
        scenes: Sequence[Mapping[str, AgentSnapshot] | InputError],
        partner_ids: Sequence[str | None],
    ) -> SafetyBatchStep:
        """Return the same for scenes that are given one by one, or what is wrong with each."""
        steps: list[SafetyStep] = []
        for row, (runtime, scene) in enumerate(zip(self._runtimes, scenes, strict=True)):
            if isinstance(scene, InputError):
                steps.append(runtime.step_blind(nominal[row], scene))
            else:
                steps.append(runtime.step(nominal[row], scene, partner_id=partner_ids[row]))
        return self._as_batch(steps)

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, JSON-able; floats survive exactly."""
        return {"rows": [runtime.state_dict() for runtime in self._runtimes]}

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the engine is unchanged after an InputError."""
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
        )

    def _table(self, rows: Sequence[LambdaDict]) -> FloatArray:
        """Return one column per pair; 0 where a pair is missing."""
        return np.array([[row.get(key, 0.0) for key in self._keys] for row in rows])


class BatchedSafetyDriver:
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
        self._env = env
        self._hooks = hooks
        self._options = options
        if ego_uid not in hooks.control_models or len(hooks.control_models) == 1:
            raise ConfigurationError(
                f"BatchedSafetyDriver: expected control models of the ego {ego_uid!r} and of at "
                f"least one partner, got {sorted(hooks.control_models)}."
            )
        self.partner_uids: tuple[str, ...] = tuple(
            sorted(uid for uid in hooks.control_models if uid != ego_uid)
        )
        self._action_dim = hooks.control_models[ego_uid].action_dim
        self._ego_uid = ego_uid
        self._controller = emergency_controller
        self._engine: VectorEngine | RowwiseEngine
        if emergency_controller is None and is_vectorised(hooks, ego_uid, options):
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
        """Build the driver from the batch that will be stepped; see the class.

        Args:
            vector_env: Offers ``build_agent_batch()``, ``build_control_models()``,
                ``build_bounds()``, ``control_timestep``, ``plant`` and ``num_envs``, possibly
                through wrappers.
            ego_uid: The agent to guard.
            options: Configuration; None means the defaults.
            emergency_controller: The ego's.
            max_rows: See the class.

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
    def env(self) -> object:
        """The batch it was built from."""
        return self._env

    @property
    def num_envs(self) -> int:
        """Environments B."""
        return self._hooks.num_envs

    @property
    def bounds(self) -> Bounds:
        """Envelope the filter enforces."""
        return self._hooks.bounds

    @property
    def lambda_(self) -> FloatArray:
        """Copy of the slack per pair, shape (B, N), m/s^2."""
        return self._engine.lambda_

    @property
    def cartesian_accel_capacity(self) -> float:
        """Capacity that lambda is compared with, m/s^2."""
        return self._hooks.bounds.cartesian_accel_capacity

    @property
    def lambda_bound(self) -> float:
        """Largest magnitude lambda may take, m/s^2."""
        return self._options.clamp_floor_ratio * self.cartesian_accel_capacity

    @property
    def partner_swaps(self) -> NDArray[np.int64]:
        """How often each environment's partner changed since `begin_run`, shape (B,)."""
        return self._engine.partner_swaps

    @property
    def vectorised(self) -> bool:
        """Whether all environments are decided together; packet ages end that at the first step."""
        return isinstance(self._engine, VectorEngine)

    def drives(self, env: object) -> bool:
        """Whether stepping ``env`` moves what the driver reads, at the step it assumes."""
        if unwrapped(env) is not unwrapped(self._env):
            return False
        return BatchEnvHooks.of(env).control_timestep == self._hooks.control_timestep

    def begin_run(self, seed: int) -> None:
        """Forget everything: slack, partners, forecasts; ``seed`` is handed to the filters."""
        self._seed, self._untouched = seed, True
        self._engine.begin_run(seed)

    def begin_run_rows(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Let a run begin in the environments ``rows``, of one seed each; the others go on."""
        self._engine.begin_run_rows(rows, seeds)

    def begin_episode(self) -> None:
        """Forget the last state of every environment; keep lambda."""
        self._engine.begin_rows(range(self.num_envs))

    def begin_rows(self, rows: Iterable[int]) -> None:
        """Forget the last state of the environments ``rows``, which a reset disconnects."""
        self._engine.begin_rows(rows)

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
        try:
            agents = self._hooks.agents()
        except InputError as error:
            if isinstance(self._engine, VectorEngine):  # whose options do not say to brake then
                raise
            return self._engine.decide_rows(nominal, [error] * self.num_envs, ids)
        if agents.ages_s is not None and isinstance(self._engine, VectorEngine):
            self._follow_ages()
        self._untouched = False
        return self._engine.decide(nominal, agents, ids)

    def step_rows(
        self,
        nominal_action: NDArray[Any],
        scenes: Sequence[Mapping[str, AgentSnapshot] | InputError],
        partner_ids: str | Sequence[str | None] | None = None,
    ) -> SafetyBatchStep:
        """Return the actions to execute in scenes that are given one by one, as `step` does.

        A scene holds every agent, or what is wrong with its observation; where one is malformed,
        only its environment brakes.

        Raises:
            InputError: As `step`; or the options let all environments be decided together.
        """
        nominal = self._nominal(nominal_action)
        ids = self._one_id_per_env(partner_ids)
        if not isinstance(self._engine, RowwiseEngine):
            raise InputError(
                "BatchedSafetyDriver.step_rows: expected options under which environments are "
                "decided one by one, such as on_bad_input='brake', got others; use step()."
            )
        self._untouched = False
        return self._engine.decide_rows(nominal, scenes, ids)

    def _rowwise_engine(self) -> RowwiseEngine:
        return RowwiseEngine(
            self._hooks,
            ego_uid=self._ego_uid,
            options=self._options,
            emergency_controller=self._controller,
        )

    def _follow_ages(self) -> None:
        """Decide one environment after the other from now on: only runtimes watch packet ages."""
        if not self._untouched:
            raise InputError(
                "BatchedSafetyDriver.step: AgentBatch.ages_s: expected ages in every step or in "
                "none, got them after steps without; pass zeros while all packets are current."
            )
        self._engine = self._rowwise_engine()
        self._engine.begin_run(self._seed)

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
