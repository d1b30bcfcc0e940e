"""Decides for the egos of many environments at once; see `cadenza.safety.batched.driver`.

Conformal update, forecast, filter and braking are those of `cadenza.safety.runtime.runtime`: every
entry goes through the operations of the scalar rules in their order. Only for egos whose action is
their Cartesian acceleration, and the options `VECTORISED`.

Axes:      B = environments, N = partners in string order, A = action, d = Cartesian dimension.
Units:     as in `cadenza.safety.runtime.runtime`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import InputError, refuse
from cadenza.safety.batched.filter import BatchedEgoFilter, BatchedStep
from cadenza.safety.batched.projection import INFEASIBLE
from cadenza.safety.braking import BrakeLayer
from cadenza.safety.conformal import SCORE_TOLERANCE, WARMUP_FACTOR
from cadenza.safety.record import Decision
from cadenza.safety.runtime.env_hooks import BatchEnvHooks
from cadenza.safety.runtime.observation import (
    ACCEL_ROUNDING,
    EGO_ROUNDING,
    Breach,
    broken_words,
    needed_accels,
    tell,
)
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.safety_step import distance
from cadenza.safety.snapshot import AgentBatch

#: Options that `VectorEngine` follows; any other must keep its default.
VECTORISED: Final = frozenset(
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
        "budget_split",
        "guarantee",
        "contact_speed",
        "position_error",
        "velocity_error",
        "brake_stopping",
        "brake_latency_s",
        "brake_hysteresis",
    }
)


def follows(options: SafetyOptions) -> bool:
    """Return whether `VectorEngine` treats these options."""
    return all(
        field.name in VECTORISED or getattr(options, field.name) == field.default
        for field in fields(options)
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class SafetyBatchStep:
    """What the driver decided for one control step of every environment."""

    #: Actions to execute, shape (B, A), float64; the nominal bits where nothing was active
    action: FloatArray
    #: Forecast error per pair, max(0, score), shape (B, N), m/s; 0 where nothing was scored
    loss: FloatArray
    scored: NDArray[np.bool_]  # Whether the environment had a forecast to score, shape (B,)
    braked: NDArray[np.bool_]  # The emergency controller's action is executed, shape (B,)
    infeasible: NDArray[np.bool_]  # No action met every row, shape (B,)
    uncertified: NDArray[np.bool_]  # The invariance certificate does not cover the step, shape (B,)
    #: Whose motion since the last step disproved what was declared: ego, then partners, (B, 1 + N)
    breached: NDArray[np.bool_]
    intervention: FloatArray  # Euclidean distance between executed and nominal action, shape (B,)
    lambda_: FloatArray  # Slack per pair after this step's update, shape (B, N), m/s^2
    used_lambda: FloatArray  # Slack per pair that entered the rows, shape (B, N), m/s^2
    #: max(0, -h) before the action, on overlap at least cbf_gamma times the overlap, shape (B, N),
    #: m/s
    constraint_violation: FloatArray
    margin: FloatArray  # Free distances less the safety margin, shape (B, N), m
    slack: FloatArray  # By how much the filter's action misses each row, shape (B, N), m/s^2
    #: Reasons of each environment's braking, by environment; only those braked
    brake_reasons: Mapping[int, tuple[str, ...]]
    #: What was wrong with each environment's observation, by environment; only those whose was
    bad_input: Mapping[int, str] = field(default_factory=dict[int, str])
    #: Which declared accelerations were disproved in each episode; only of those where one was
    reason: Mapping[int, str] = field(default_factory=dict[int, str])
    #: Gap to the nearest obstacle less what is kept, shape (B,), m; infinite without any
    static_margin: FloatArray | float = math.inf
    #: The promise about obstacles does not cover the step, shape (B,)
    static_uncertified: NDArray[np.bool_] | bool = False

    @property
    def decision(self) -> Decision:
        """What a `StepRecord` of lanes counts."""
        lambdas = self.lambda_
        return Decision(
            braked=self.braked,
            infeasible=self.infeasible,
            uncertified=self.uncertified,
            violation=self.constraint_violation.max(axis=1, initial=0.0),
            margin=self.margin.min(axis=1, initial=0.0),
            slack=self.slack.max(axis=1, initial=0.0),
            lambda_mean=sum(lambdas.T, np.zeros(len(lambdas))) / lambdas.shape[1],
            partner_breached=self.breached[:, 1:].any(axis=1),
            ego_breached=self.breached[:, 0],
            reasons=self.brake_reasons,
            static_margin=self.static_margin,
            static_uncertified=self.static_uncertified,
        )


class Scene(NamedTuple):
    """Motion of B egos and their N partners each, (B, d) and (B, N, d), float64; radii are (N,)."""

    ego_position: Tensor
    ego_velocity: Tensor
    ego_radius: float
    partner_positions: Tensor
    partner_velocities: Tensor
    partner_radii: Tensor


def scene_of(agents: AgentBatch, ego_uid: str, partner_uids: tuple[str, ...]) -> Scene:
    """Return the ego and the partners in the given order; InputError for any other agents."""
    if set(agents.uids) != {ego_uid, *partner_uids}:
        raise InputError(
            f"BatchedSafetyDriver: expected the agents {[ego_uid, *partner_uids]}, got "
            f"{list(agents.uids)}."
        )
    ego = agents.uids.index(ego_uid)
    partners = [agents.uids.index(uid) for uid in partner_uids]
    return Scene(
        ego_position=torch.as_tensor(agents.positions[:, ego]),
        ego_velocity=torch.as_tensor(agents.velocities[:, ego]),
        ego_radius=float(agents.radii[ego]),
        partner_positions=torch.as_tensor(agents.positions[:, partners]),
        partner_velocities=torch.as_tensor(agents.velocities[:, partners]),
        partner_radii=torch.as_tensor(agents.radii[partners]),
    )


@dataclass(slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class BatchMemory:
    """Memory of B environments."""

    lambda_: FloatArray  # Slack per pair, shape (B, N)
    warmup: NDArray[np.int64]  # Steps of stricter adaptation that are left, shape (B,)
    partner_ids: list[str | None]  # Identity of each environment's partner; None if unknown so far
    partner_swaps: NDArray[np.int64]  # How often it changed, shape (B,)
    has_forecast: NDArray[np.bool_]  # Whether the forecast is of this episode, shape (B,)
    forecast: FloatArray  # Forecast positions of the partners, shape (B, N, d)
    forecast_velocity: FloatArray  # Forecast velocities, shape (B, N, d)
    #: Slack per pair, N numbers, and warm-up of the partners that left, per environment; the one
    #: that left longest ago first
    kept: list[dict[str, tuple[list[float], int]]]
    own: FloatArray  # Position, velocity and last action of each ego, shape (B, 3, d)
    #: Largest accelerations beyond the declared ones, shape (B, 1 + N): how far the ego's was off
    #: its model, then the partners'; 0 for none
    seen: FloatArray
    directions: FloatArray  # As `BatchedEgoFilter` returns them, shape (B, N, d)

    @classmethod
    def fresh(
        cls, shape: tuple[int, int, int], *, lambda_safe: float, n_warmup_steps: int
    ) -> "BatchMemory":
        """Return the memory at the start of a run; ``shape`` is (B, N, d)."""
        envs = shape[0]
        return cls(
            lambda_=np.full(shape[:2], lambda_safe),
            warmup=np.full(envs, n_warmup_steps, dtype=np.int64),
            partner_ids=[None] * envs,
            partner_swaps=np.zeros(envs, dtype=np.int64),
            has_forecast=np.zeros(envs, dtype=np.bool_),
            forecast=np.zeros(shape),
            forecast_velocity=np.zeros(shape),
            kept=[{} for _ in range(envs)],
            own=np.zeros((envs, 3, shape[2])),
            seen=np.zeros((envs, 1 + shape[1])),
            directions=np.zeros(shape),
        )

    def begin_row(self, row: int) -> None:
        """Forget what an episode or a partner left behind."""
        self.has_forecast[row] = False
        self.seen[row] = self.directions[row] = 0.0

    def begin_run_row(self, row: int, fresh: "BatchMemory") -> None:
        """Let ``row`` be as in ``fresh``, the memory of a run that begins."""
        for entry in fields(self):
            mine, new = getattr(self, entry.name), getattr(fresh, entry.name)
            mine[row] = {} if entry.name == "kept" else new[row]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, in the order of the class."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; floats survive exactly."""
        stored = {name.rstrip("_"): values.tolist() for name, values in self.arrays().items()}
        kept = [[[uid, *slack] for uid, slack in of_row.items()] for of_row in self.kept]
        return {**stored, "partner_ids": list(self.partner_ids), "kept": kept}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any], like: "BatchMemory") -> "BatchMemory":
        """Return the memory that `to_dict` described, of the size of ``like``, or InputError."""
        older = {name: getattr(like, name) for name in ("own", "seen", "directions")}
        try:
            given = {**older, **payload}  # which older records lack
            arrays = {
                name: np.array(given[name.rstrip("_")], dtype=new.dtype)
                for name, new in like.arrays().items()
            }
            ids = [None if uid is None else str(uid) for uid in given["partner_ids"]]
            kept = [
                {
                    str(uid): ([float(value) for value in lambda_], int(warmup))
                    for uid, lambda_, warmup in of_row
                }
                for of_row in given["kept"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"BatchedSafetyDriver state: expected a complete record: {error!r}"
            ) from error
        for name, new in like.arrays().items():
            where, shape = f"BatchedSafetyDriver state: {name}", arrays[name].shape
            if shape != new.shape:
                refuse(InputError, where, expected=f"shape {new.shape} for this batch", got=shape)
            if not bool(np.isfinite(arrays[name]).all()):
                raise InputError(f"{where}: expected finite numbers.")
        for name, entries in (("partner_ids", ids), ("kept", kept)):
            require_entries(name, entries, len(like.kept))
        return cls(**arrays, partner_ids=ids, kept=kept)


def require_entries(name: str, entries: object, envs: int, what: str = "entries") -> Sequence[Any]:
    """Return the entries of a stored state, one per environment, or InputError."""
    found = len(cast("list[Any]", entries)) if isinstance(entries, list) else repr(entries)
    if found != envs:
        where = f"BatchedSafetyDriver state: {name}"
        refuse(InputError, where, expected=f"{envs} {what}", got=found)
    return cast("list[Any]", entries)


def next_lambda(
    lambda_: FloatArray,
    scores: FloatArray,
    in_warmup: NDArray[np.bool_],
    options: SafetyOptions,
    lambda_bound: float,
) -> FloatArray:
    """Return lambda after one score per pair, shape (B, N): `conformal.margin` on arrays.

    ``in_warmup``, (B,), says where the stricter miss rate of the warm-up applies.
    """
    rate, gamma = options.miss_rate, options.cbf_gamma
    rates = np.where(in_warmup, rate / WARMUP_FACTOR, rate)[:, None]
    margin = np.maximum(0.0, -lambda_ / gamma)
    miss = np.where(scores > margin + SCORE_TOLERANCE, 1.0, 0.0)
    margin = np.maximum(0.0, margin + options.eta * (miss - rates))
    return 0.0 - gamma * np.minimum(margin, lambda_bound / gamma)  # not -(gamma q), which is -0.0


class VectorEngine:
    """Decides for B environments at once; see `BatchedSafetyDriver`."""

    def __init__(
        self,
        hooks: BatchEnvHooks,
        *,
        ego_uid: str,
        options: SafetyOptions,
        max_rows: int | None = None,
    ) -> None:
        ego_model = hooks.control_models[ego_uid]
        self.partner_uids: tuple[str, ...] = hooks.partners_of(ego_uid)
        self._hooks, self._ego_uid, self._options = hooks, ego_uid, options
        self._lambda_bound = options.clamp_floor_ratio * hooks.bounds.cartesian_accel_capacity
        self._start_lambda = max(options.lambda_safe, -self._lambda_bound)
        self._filter = BatchedEgoFilter(
            ego_model=ego_model,
            partner_models=[hooks.control_models[uid] for uid in self.partner_uids],
            bounds=hooks.bounds,
            dt=hooks.control_timestep,
            plant=hooks.plant,
            max_rows=max_rows,
            **options.filter_options(),
        )
        self._brakes = self._brake_layers()
        split = options.budget_split is not None  # then partners may use their whole box
        self._declared = np.array(
            [0.0]
            + [
                hooks.bounds.action_linf_component * math.sqrt(model.action_dim)
                if split
                else model.max_cartesian_accel(hooks.bounds)
                for model in (hooks.control_models[uid] for uid in self.partner_uids)
            ]
        )
        self._capacity = ego_model.max_cartesian_accel(hooks.bounds)
        self._told: set[str] = set()
        self._shape = (hooks.num_envs, len(self.partner_uids), ego_model.position_dim)
        self.begin_run(0)

    @property
    def lambda_(self) -> FloatArray:
        """Copy of the slack per pair, shape (B, N), m/s^2."""
        return self._memory.lambda_.copy()

    @property
    def partner_swaps(self) -> NDArray[np.int64]:
        """How often each environment's partner changed since `begin_run`, shape (B,)."""
        return self._memory.partner_swaps.copy()

    def begin_run(self, seed: int) -> None:
        """Forget everything; nothing is drawn from ``seed``."""
        del seed
        self._memory = self._fresh()
        for layer in self._brakes:
            layer.forget()

    def begin_run_rows(self, rows: Iterable[int], seeds: Iterable[int]) -> None:
        """Forget everything of the environments ``rows``; nothing is drawn from ``seeds``."""
        del seeds
        fresh = self._fresh()
        for row in rows:
            self._memory.begin_run_row(row, fresh)
            self._brakes[row].forget()

    def _brake_layers(self) -> list[BrakeLayer]:
        """Return a layer per environment that brakes nobody."""
        hooks = self._hooks
        return [
            BrakeLayer(
                ego_uid=self._ego_uid,
                control_models=hooks.control_models,
                controllers=None,
                bounds=hooks.bounds,
                dt=hooks.control_timestep,
                **self._options.brake_options(),
            )
            for _ in range(hooks.num_envs)
        ]

    def _fresh(self) -> BatchMemory:
        """Return the memory at the start of a run."""
        return BatchMemory.fresh(
            self._shape,
            lambda_safe=self._start_lambda,
            n_warmup_steps=self._options.n_warmup_steps,
        )

    def begin_rows(self, rows: Iterable[int]) -> None:
        """Forget the last state of the environments ``rows``."""
        for row in rows:
            self._memory.begin_row(row)
            self._brakes[row].forget()

    def decide(
        self, nominal: FloatArray, agents: AgentBatch, partner_ids: Sequence[str | None]
    ) -> SafetyBatchStep:
        """Return the actions to execute; ``nominal`` is (B, A), one partner id per environment.

        Raises:
            InputError: An action is not finite, or the agents are others than those with a control
                model.
        """
        require_finite("BatchedSafetyDriver.step: nominal_action", nominal)
        scene = scene_of(agents, self._ego_uid, self.partner_uids)
        self._notice_partners(partner_ids)
        expected, breached = self._look(scene)
        loss, scored = self._update_conformal(scene, expected)
        outcome = self._filter.filter(
            torch.as_tensor(nominal),
            **scene._asdict(),
            lambda_=torch.as_tensor(self._memory.lambda_),
            directions=torch.as_tensor(self._memory.directions),
            partner_accel=expected,
        )
        self._forecast(scene)
        step = self._finish(nominal, agents, outcome, loss, scored, breached)
        memory = self._memory
        memory.own = np.stack((scene.ego_position, scene.ego_velocity, step.action), axis=1)
        if outcome.directions.shape[1] > 0:  # errors of measurement are stated
            memory.directions = np.where(step.braked[:, None, None], 0.0, outcome.directions)
        return step

    def _look(self, scene: Scene) -> tuple[Tensor | None, NDArray[np.bool_]]:
        """Compare how everyone moved with what was declared; return what to expect of partners.

        Returns:
            Accelerations, shape (B, N), m/s^2, None while all declarations hold; and who broke one
            since the last step, shape (B, 1 + N).
        """
        memory, options, dt = self._memory, self._options, self._hooks.control_timestep
        errors = options.position_error, options.velocity_error
        now = torch.cat((scene.ego_position.unsqueeze(1), scene.partner_positions), 1).numpy()
        v = torch.cat((scene.ego_velocity.unsqueeze(1), scene.partner_velocities), 1).numpy()
        u = np.concatenate((memory.own[:, 1:2], memory.forecast_velocity), 1)
        q = memory.forecast - memory.forecast_velocity * dt
        q = np.concatenate((memory.own[:, :1], q), 1)
        known = np.zeros_like(u)
        known[:, 0] = memory.own[:, 2]
        needed = needed_accels((now, v), (q, u), known, dt, errors)
        size = np.sqrt((known[:, 0] ** 2).sum(-1)) + self._hooks.bounds.action_linf_component
        allowed = np.broadcast_to(self._declared * (1.0 + ACCEL_ROUNDING), needed.shape).copy()
        allowed[:, 0] = EGO_ROUNDING * size
        found = memory.has_forecast[:, None] & (needed > allowed)
        if found.any():
            memory.seen = np.where(found, np.maximum(memory.seen, needed), memory.seen)
            for row in np.flatnonzero(found.any(1)).tolist():
                tell(self._broken(row), self._ego_uid, self._told)
        if not memory.seen.any():
            return None, found
        missing = np.minimum(memory.seen[:, :1], self._capacity)
        expected = np.maximum(memory.seen[:, 1:], self._declared[1:]) + missing
        return torch.as_tensor(expected), found

    def _broken(self, row: int) -> dict[str, Breach]:
        """Return the disproved declarations of an environment."""
        pairs = zip((self._ego_uid, *self.partner_uids), self._memory.seen[row], strict=True)
        return {
            uid: (float(seen), float(bound))
            for (uid, seen), bound in zip(pairs, self._declared, strict=True)
            if seen > 0.0
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, JSON-able; floats survive exactly."""
        return {**self._memory.to_dict(), "brakes": [layer.state_dict() for layer in self._brakes]}

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the engine is unchanged after an InputError."""
        memory = BatchMemory.from_dict(payload, self._fresh())
        stored = require_entries("brakes", payload.get("brakes"), self._hooks.num_envs)
        layers = self._brake_layers()
        for layer, pairs in zip(layers, stored, strict=True):
            layer.load_state_dict(pairs)
        self._memory, self._brakes = memory, layers

    def _notice_partners(self, partner_ids: Sequence[str | None]) -> None:
        """Start the conformal layer over where another partner took the seat."""
        memory = self._memory
        for row, (known, uid) in enumerate(zip(memory.partner_ids, partner_ids, strict=True)):
            if uid is None or uid == known:
                continue
            memory.partner_ids[row] = uid
            if known is not None:
                self._swap(row, left=known, came=uid)

    def _swap(self, row: int, *, left: str, came: str) -> None:
        """Remember the partner that left; start over, or go on as with the one that came."""
        memory, options = self._memory, self._options
        kept = memory.kept[row]
        kept[left] = (memory.lambda_[row].tolist(), int(memory.warmup[row]))
        while len(kept) > options.partner_memory:
            del kept[next(iter(kept))]
        fresh = ([self._start_lambda] * self._shape[1], options.n_warmup_steps)
        memory.lambda_[row], memory.warmup[row] = kept.pop(came, fresh)
        memory.partner_swaps[row] += 1
        memory.begin_row(row)

    def _update_conformal(
        self, scene: Scene, expected: Tensor | None
    ) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Score the last forecasts of the partners and move lambda; return loss and who was scored.

        The ego enters both sides as it is now: its own action is no error of the forecast.
        """
        memory, options = self._memory, self._options
        scored = memory.has_forecast.copy()
        if not scored.any():
            return np.zeros(self._shape[:2]), scored
        ego = (scene.ego_position, scene.ego_velocity)
        contact = scene.ego_radius + self._filter.options.margin_m + scene.partner_radii
        then, speed = torch.as_tensor(memory.forecast), torch.as_tensor(memory.forecast_velocity)
        positions = torch.stack((then, scene.partner_positions))
        velocities = torch.stack((speed, scene.partner_velocities))
        h = self._filter.barrier_values(ego, (positions, velocities), contact, expected).numpy()
        scores = h[0] - h[1]
        warm = memory.warmup > 0
        updated = next_lambda(memory.lambda_, scores, warm, options, self._lambda_bound)
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
        breached: NDArray[np.bool_],
    ) -> SafetyBatchStep:
        """Brake where no action met the rows, and return the record of the step."""
        action = outcome.action.numpy().copy()
        intervention = outcome.intervention.numpy().copy()
        infeasible = outcome.status.numpy() >= INFEASIBLE
        braked = np.zeros(len(action), dtype=np.bool_)
        reasons: dict[int, tuple[str, ...]] = {}
        stops = self._filter.options.passive and outcome.margin.shape[1] > 1  # as in `_brake`
        # A proved action stands.
        unproved = (infeasible & outcome.uncertified.numpy() & (not stops)).tolist()
        for row, layer in enumerate(self._brakes):
            if not unproved[row]:
                if layer.pairs:
                    layer.forget()
                continue
            decision = layer.decide(
                action[row], agents.snapshots(row), None, infeasible=True, previous_action=None
            )
            if decision is not None and decision.override is not None:
                action[row] = decision.override[self._ego_uid]
                intervention[row] = distance(action[row], nominal[row])
                braked[row] = True
                reasons[row] = tuple(danger.reason for danger in decision.dangers.values())
        return SafetyBatchStep(
            action=action,
            loss=loss,
            scored=scored,
            braked=braked,
            infeasible=infeasible,
            uncertified=outcome.uncertified.numpy(),
            breached=breached,
            intervention=intervention,
            lambda_=self.lambda_,
            used_lambda=outcome.lambda_.numpy(),
            constraint_violation=np.maximum(
                np.maximum(0.0, -outcome.h.numpy()),
                -self._filter.options.undoing_rate * outcome.margin.numpy(),
            ),
            margin=outcome.margin.numpy(),
            slack=outcome.slack.numpy(),
            brake_reasons=reasons,
            reason={
                row: broken_words(self._broken(row), self._ego_uid)
                for row in np.flatnonzero(self._memory.seen.any(1)).tolist()
            },
        )
