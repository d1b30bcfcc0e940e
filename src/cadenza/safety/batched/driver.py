"""One object that guards the ego in each of many environments stepped as one.

Each environment is treated exactly as `cadenza.safety.driver.SafetyDriver` treats its one: own
lambda, own warm-up, own episode boundaries, own partner. Rows and projection run for all
environments together; the braking layer runs, one by one, for those where no action met the rows.

Order:   conformal update, forecast, filter, braking.
Axes:    B = environments, N = partners in string order, A = action, d = Cartesian dimension.
Units:   as in `cadenza.safety.driver`.
Limits:  egos whose action is their Cartesian acceleration; the two-sided rule and forecasts at
         constant velocity only. Other settings are refused.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.agent_batch import AgentBatch
from cadenza.safety.batched.barrier_values import BarrierValues
from cadenza.safety.batched.driver_state import DriverMemory, KeptSlack
from cadenza.safety.batched.env_hooks import BatchEnvHooks
from cadenza.safety.batched.filter import BatchedEgoFilter, BatchedStep
from cadenza.safety.batched.margin_rule import next_lambda
from cadenza.safety.batched.scene import Scene, scene_of
from cadenza.safety.batched.status import INFEASIBLE
from cadenza.safety.batched.step import SafetyBatchStep
from cadenza.safety.bounds import Bounds
from cadenza.safety.braking import BrakeDecision, maybe_brake
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.env_hooks import unwrapped
from cadenza.safety.options import SafetyOptions

#: Options that the batch follows; any other must keep its default.
SUPPORTED_OPTIONS: Final = frozenset(
    {
        "cbf_gamma",
        "saturation_threshold",
        "lambda_safe",
        "n_warmup_steps",
        "tau_brake",
        "clamp_floor_ratio",
        "margin_m",
        "miss_rate",
        "eta",
        "partner_memory",
        "barrier",
        "compat",
        "cbf_power",
        "budget_split",
    }
)


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

    Raises:
        ConfigurationError: The ego is no double integrator, there is no partner, or an option is
            set that the batch does not follow.
    """

    def __init__(
        self,
        env: object,
        hooks: BatchEnvHooks,
        *,
        ego_uid: str,
        options: SafetyOptions,
    ) -> None:
        _require_supported(options)
        if ego_uid not in hooks.control_models:
            raise ConfigurationError(
                f"BatchedSafetyDriver: expected a control model of the ego {ego_uid!r}, "
                f"got {sorted(hooks.control_models)}."
            )
        ego_model = hooks.control_models[ego_uid]
        if not isinstance(ego_model, DoubleIntegratorControlModel):
            raise ConfigurationError(
                f"BatchedSafetyDriver: expected the action of {ego_uid!r} to be its Cartesian "
                f"acceleration, got a {type(ego_model).__name__}; set num_envs = 1."
            )
        self._env = env
        self._hooks = hooks
        self._ego_uid = ego_uid
        self._options = options
        self.partner_uids = tuple(sorted(uid for uid in hooks.control_models if uid != ego_uid))
        if not self.partner_uids:
            raise ConfigurationError(
                "BatchedSafetyDriver: expected at least one partner, got none."
            )
        self._capacity = ego_model.max_cartesian_accel(hooks.bounds)
        partner_models = [hooks.control_models[uid] for uid in self.partner_uids]
        self._filter = BatchedEgoFilter(
            ego_model=ego_model,
            partner_models=partner_models,
            bounds=hooks.bounds,
            dt=hooks.control_timestep,
            plant=hooks.plant,
            **options.filter_options(),
        )
        self._barrier = BarrierValues(
            ego_model=ego_model,
            partner_models=partner_models,
            bounds=hooks.bounds,
            options=self._filter.options,
            dt=hooks.control_timestep,
        )
        self._shape = (hooks.num_envs, len(self.partner_uids), ego_model.position_dim)
        self._memory = self._fresh_memory()

    @classmethod
    def from_env(
        cls,
        vector_env: object,
        *,
        ego_uid: str,
        options: SafetyOptions | None = None,
    ) -> "BatchedSafetyDriver":
        """Build the driver from the batch that will be stepped.

        Args:
            vector_env: Offers ``build_agent_batch()``, ``build_control_models()``,
                ``build_bounds()``, ``control_timestep``, ``plant`` and ``num_envs``, possibly
                through wrappers.
            ego_uid: The agent to guard.
            options: Configuration; None means the defaults.

        Raises:
            ConfigurationError: A hook is missing or the class refuses the combination.
        """
        return cls(
            vector_env,
            BatchEnvHooks.of(vector_env),
            ego_uid=ego_uid,
            options=SafetyOptions() if options is None else options,
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
        return self._memory.lambda_.copy()

    @property
    def cartesian_accel_capacity(self) -> float:
        """Acceleration the ego is credited with, m/s^2."""
        return self._capacity

    @property
    def lambda_bound(self) -> float:
        """Largest magnitude lambda may take, m/s^2."""
        return self._options.clamp_floor_ratio * self._capacity

    @property
    def partner_swaps(self) -> NDArray[np.int64]:
        """How often each environment's partner changed since `begin_run`, shape (B,)."""
        return self._memory.partner_swaps.copy()

    def drives(self, env: object) -> bool:
        """Whether stepping ``env`` moves what the driver reads, at the step it assumes.

        Raises:
            ConfigurationError: A wrapper of ``env`` says that it cannot be guarded.
        """
        if unwrapped(env) is not unwrapped(self._env):
            return False
        return BatchEnvHooks.of(env).control_timestep == self._hooks.control_timestep

    def begin_run(self, seed: int) -> None:
        """Forget everything: slack, partners, forecasts; nothing is drawn from ``seed``."""
        del seed
        self._memory = self._fresh_memory()

    def begin_episode(self) -> None:
        """Forget the last state of every environment; keep lambda."""
        self.begin_rows(range(self.num_envs))

    def begin_rows(self, rows: Iterable[int]) -> None:
        """Forget the last state of the environments ``rows``, which a reset disconnects."""
        for row in rows:
            self._memory.has_forecast[row] = False
            self._memory.braking_pairs[row] = frozenset()

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
            InputError: The actions are malformed or not finite, or there is not one identity per
                environment.
        """
        nominal = self._checked_nominal(nominal_action)
        agents = self._hooks.agents()
        scene = scene_of(agents, self._ego_uid, self.partner_uids)
        self._notice_partners(partner_ids)
        loss, scored = self._update_conformal(scene)
        outcome = self._filter.filter(
            torch.as_tensor(nominal),
            scene.ego_position,
            scene.ego_velocity,
            scene.partner_positions,
            scene.partner_velocities,
            scene.ego_radius,
            scene.partner_radii,
            lambda_=torch.as_tensor(self._memory.lambda_),
        )
        self._forecast(scene)
        return self._finish(nominal, agents, outcome, loss, scored)

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, JSON-able; floats survive exactly."""
        return self._memory.to_dict()

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            InputError: Unknown version, malformed content or another batch; the driver is then
                unchanged.
        """
        self._memory = DriverMemory.from_dict(payload, self._shape)

    def _fresh_memory(self) -> DriverMemory:
        return DriverMemory.fresh(
            self._shape,
            lambda_safe=self._options.lambda_safe,
            n_warmup_steps=self._options.n_warmup_steps,
        )

    def _checked_nominal(self, nominal_action: NDArray[Any]) -> FloatArray:
        nominal = np.array(nominal_action, dtype=np.float64)
        shape = (self.num_envs, self._shape[2])
        require_shape("BatchedSafetyDriver.step: nominal_action", nominal, shape)
        require_finite("BatchedSafetyDriver.step: nominal_action", nominal)
        return nominal

    def _notice_partners(self, partner_ids: str | Sequence[str | None] | None) -> None:
        """Start the conformal layer over where another partner took the seat."""
        if partner_ids is None:
            return
        memory, count = self._memory, self.num_envs
        ids = [partner_ids] * count if isinstance(partner_ids, str) else list(partner_ids)
        if len(ids) != count:
            raise InputError(
                f"BatchedSafetyDriver.step: expected one partner id for each of {count} "
                f"environments, got {len(ids)}."
            )
        for row, (known, uid) in enumerate(zip(memory.partner_ids, ids, strict=True)):
            if uid is None or uid == known:
                continue
            memory.partner_ids[row] = uid
            if known is not None:
                self._swap(row, left=known, came=uid)

    def _swap(self, row: int, *, left: str, came: str) -> None:
        """Remember the partner that left; start over, or go on as with the one that came."""
        memory, options = self._memory, self._options
        kept = memory.kept[row]
        kept[left] = KeptSlack(memory.lambda_[row].tolist(), int(memory.warmup[row]))
        while len(kept) > options.partner_memory:
            del kept[next(iter(kept))]
        fresh = KeptSlack([options.lambda_safe] * self._shape[1], options.n_warmup_steps)
        slack = kept.pop(came, fresh)
        memory.lambda_[row], memory.warmup[row] = slack.lambda_, slack.warmup
        memory.partner_swaps[row] += 1
        memory.has_forecast[row] = False

    def _update_conformal(self, scene: Scene) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Score the last forecasts of the partners and move lambda; return loss and who was scored.

        The ego enters both sides as it is now: its own action is no error of the forecast.
        """
        memory, options = self._memory, self._options
        scored = memory.has_forecast.copy()
        if not scored.any():
            return np.zeros(self._shape[:2]), scored
        expected = self._barrier.of(
            scene, torch.as_tensor(memory.forecast), torch.as_tensor(memory.forecast_velocity)
        )
        actual = self._barrier.of(scene, scene.partner_positions, scene.partner_velocities)
        scores = (expected - actual).numpy()
        updated = next_lambda(
            memory.lambda_,
            scores,
            memory.warmup > 0,
            eta=options.eta,
            miss_rate=options.miss_rate,
            gamma=options.cbf_gamma,
            lambda_bound=self.lambda_bound,
        )
        memory.lambda_ = np.where(scored[:, None], updated, memory.lambda_)
        memory.warmup[scored] = np.maximum(0, memory.warmup[scored] - 1)
        return np.where(scored[:, None], np.maximum(0.0, scores), 0.0), scored

    def _forecast(self, scene: Scene) -> None:
        """Forecast the partners one step ahead at constant velocity."""
        memory, velocities = self._memory, scene.partner_velocities
        ahead = scene.partner_positions + velocities * self._hooks.control_timestep
        memory.forecast, memory.forecast_velocity = ahead.numpy(), velocities.numpy()
        memory.has_forecast[:] = True

    def _finish(
        self,
        nominal: FloatArray,
        agents: AgentBatch,
        outcome: BatchedStep,
        loss: FloatArray,
        scored: NDArray[np.bool_],
    ) -> SafetyBatchStep:
        """Brake where no action met the rows, and return the record of the step."""
        action = outcome.action.numpy().copy()
        intervention = outcome.intervention.numpy().copy()
        status = outcome.status.numpy()
        infeasible = status >= INFEASIBLE
        braked = np.zeros(self.num_envs, dtype=np.bool_)
        reasons: dict[int, tuple[str, ...]] = {}
        pairs = self._memory.braking_pairs
        for row in range(self.num_envs):
            if not infeasible[row]:
                pairs[row] = frozenset()
                continue
            decision = self._brake(row, action[row], agents)
            pairs[row] = frozenset(decision.dangers)
            if decision.override is not None:
                action[row] = decision.override[self._ego_uid]
                intervention[row] = math.dist(action[row].tolist(), nominal[row].tolist())
                braked[row] = True
                reasons[row] = tuple(danger.reason for danger in decision.dangers.values())
        return SafetyBatchStep(
            action=action,
            status=status,
            loss=loss,
            scored=scored,
            braked=braked,
            infeasible=infeasible,
            uncertified=outcome.uncertified.numpy(),
            intervention=intervention,
            lambda_=self.lambda_,
            used_lambda=outcome.lambda_.numpy(),
            h=outcome.h.numpy(),
            margin=outcome.margin.numpy(),
            slack=outcome.slack.numpy(),
            brake_reasons=reasons,
        )

    def _brake(self, row: int, action: FloatArray, agents: AgentBatch) -> BrakeDecision:
        """Ask the braking layer whether contact is imminent; partners are obstacles to it."""
        return maybe_brake(
            {self._ego_uid: action},
            agents.snapshots(row),
            bounds=self.bounds,
            tau_brake=self._options.tau_brake,
            still_braking=self._memory.braking_pairs[row],
        )


def _require_supported(options: SafetyOptions) -> None:
    """Raise for an option that the batch would silently ignore."""
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name not in SUPPORTED_OPTIONS and value != field.default:
            raise ConfigurationError(
                f"SafetyOptions.{field.name}: expected {field.default!r} for a batch of "
                f"environments, got {value!r}; set num_envs = 1, or leave the option at its "
                "default."
            )
